"""Bodies, the data that only clients can read: stores them, and erases them without a trace.

``secure_delete`` zeroes what SQLite frees. It does not zero the stale copies that SQLite leaves when it moves a live
row. Deleting rows makes SQLite merge half-empty pages; the old place of a moved row then stays readable in the unused
middle of a page, even after that row was erased too. So rows of body tables are never deleted one by one.

A body is erased by an UPDATE to NULL, which zeroes it where it lies and moves nothing. The empty rows go with their
whole table. Bodies are appended to segments, and each segment is a table: ``compaction.py`` removes those of which
enough is dead.
"""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from pathlib import Path

from conclave.store.engine.connection import of_store
from conclave.store.engine.faults import StoreFullError, free_bytes
from conclave.store.engine.sqlite import ROWS_A_STATEMENT, insert_many, places

MEASURED = 4096
"""A statement measures at most 4,096 bodies."""

SEGMENT_BYTES = 32 * 1024 * 1024
"""A segment is sealed once it has taken in more than 32 MiB of bodies."""

LONGEST_BYTES = 1024 * 1024
"""A body has at most 1 MiB, since each came in a request."""

SMALL_BYTES = 8 * 1024
"""Bodies of at most 8 KiB are stored many by one statement. It keeps the last ones in memory, for each segment."""

ROW_OVERHEAD_BYTES = 24
"""Each body counts as about 24 bytes more than it has, so that many tiny bodies count too."""

BEYOND_ROOM_BYTES = 64 * 1024
"""The commit of a leave, a removal or a ban may take 64 KiB where there is no room for other bodies."""

DISCARDED_TOGETHER = 1000
"""If more than 1,000 bodies are discarded together, none of them is erased at once."""

SWEPT, SWEPT_BYTES = 32, 128 * 1024
"""A step erases at most 32 bodies that were discarded, with at most 128 KiB together, but at least one."""

LAST_FREE_BYTES = 2 * 1024 * 1024
"""BEYOND_ROOM_BYTES are not given while less than 2 MiB of the disk are free.

That rest is for changes without a body: a user who joins and leaves again and again must not take the last of it.
"""

OWNERS = (
    ("messages", "message_id"),
    ("groups", "group_info_body"),
    ("invites", "commit_body"),
    ("invites", "welcome_body"),
    ("invites", "group_info_body"),
    ("key_packages", "package_body"),
    ("welcomes", "welcome_body"),
    ("discarded_bodies", "discarded_body"),
)
"""Every column that refers to a body: table and column."""


def put(connection: sqlite3.Connection, body: bytes) -> int:
    """Append ``body`` and return its id. Raises StoreFullError if the disk has no room for it."""
    return put_many(connection, [body])[0]


def put_many(connection: sqlite3.Connection, many: Sequence[bytes]) -> list[int]:
    """Append bodies (at most some hundreds) and return their ids. Raises StoreFullError: then none is stored."""
    total = sum(map(len, many))
    take_room(connection, total)
    segment, last = _reserve(connection, len(many), total + len(many) * ROW_OVERHEAD_BYTES)
    first = segment << 32 | last - len(many) + 1
    ids = list(range(first, first + len(many)))
    for is_small, rows in groupby(zip(ids, many, strict=True), key=lambda row: len(row[1]) <= SMALL_BYTES):
        most = ROWS_A_STATEMENT if is_small else 1
        insert_many(connection, f"INSERT INTO {table(segment)} (body_id, body)", list(rows), most)
    return ids


def take_room(connection: sqlite3.Connection, count: int) -> None:
    """Take ``count`` bytes of the room for what clients send. Raises StoreFullError if the disk has less."""
    store = of_store(connection)
    if count > store.room:
        path = _path(connection)
        free = free_bytes(path.parent)
        raise StoreFullError(f"{path}: there is no room for what clients send ({free:,} bytes are free)")
    store.room -= count


@contextmanager
def beyond_room(connection: sqlite3.Connection) -> Iterator[None]:
    """Let the block store up to BEYOND_ROOM_BYTES more than there is room for.

    It is for bodies that make something else go. Without effect while less than LAST_FREE_BYTES are free.
    """
    store = of_store(connection)
    spare = BEYOND_ROOM_BYTES if free_bytes(_path(connection).parent) >= LAST_FREE_BYTES else 0
    store.room += spare
    try:
        yield
    finally:
        store.room = max(0, store.room - spare)


def get_many(connection: sqlite3.Connection, body_ids: Iterable[int]) -> dict[int, bytes]:
    """Return the bodies of ``body_ids`` (at most some thousands), by id."""
    found: dict[int, bytes] = {}
    for segment, ids in by_segment(body_ids).items():
        rows = connection.execute(
            f"SELECT body_id, body FROM {table(segment)} WHERE body_id IN ({places(ids)})",
            ids,
        )
        found.update(rows.fetchall())
    return found


def get(connection: sqlite3.Connection, body_id: int) -> bytes:
    """Return one body."""
    return get_many(connection, [body_id])[body_id]


def piece(connection: sqlite3.Connection, body_id: int, begin: int, size: int) -> bytes:
    """Return ``size`` bytes of a body from the position ``begin`` on, fewer at its end."""
    row = connection.execute(
        f"SELECT substr(body, ?, ?) FROM {table(body_id >> 32)} WHERE body_id = ?", (begin + 1, size, body_id)
    ).fetchone()
    found: bytes = row[0]
    return found


def first_within(connection: sqlite3.Connection, body_ids: Sequence[int], limit: int, least: int = 1) -> list[int]:
    """Return the first of ``body_ids`` that have at most ``limit`` bytes together, but at least ``least``."""
    total = 0
    for count, size in enumerate(sizes(connection, body_ids)):
        total += size
        if total > limit:
            return list(body_ids[: max(least, count)])
    return list(body_ids)


def sizes(connection: sqlite3.Connection, body_ids: Sequence[int]) -> list[int]:
    """Return how many bytes each of ``body_ids`` has. An erased body has 0."""
    found: dict[int, int] = {}
    for segment, ids in by_segment(body_ids).items():
        if not _exists(connection, segment):
            continue
        rows = connection.execute(
            f"SELECT body_id, length(body) FROM {table(segment)} WHERE body_id IN ({places(ids)})", ids
        )
        found.update((row[0], row[1] or 0) for row in rows)
    return [found.get(body_id, 0) for body_id in body_ids]


def total_size(connection: sqlite3.Connection, body_ids: Iterable[int]) -> int:
    """Return how many bytes ``body_ids`` (none erased) have together. They are measured MEASURED at a time."""
    total, left = 0, iter(body_ids)
    while some := list(islice(left, MEASURED)):
        for segment, ids in by_segment(some).items():
            query = f"SELECT ifnull(sum(length(body)), 0) FROM {table(segment)} WHERE body_id IN ({places(ids)})"
            total += connection.execute(query, ids).fetchone()[0]
    return total


def get_small(connection: sqlite3.Connection, body_ids: Iterable[int], most: int) -> dict[int, bytes]:
    """Return those bodies that have at most ``most`` bytes each, by id. None of ``body_ids`` is erased.

    SQLite gives all bodies of a segment as one row: beside a busy event loop, a thread waits for the interpreter at
    each row. So they have to be small together.
    """
    found: dict[int, bytes] = {}
    for segment, ids in by_segment(body_ids).items():
        keys, lengths, joined = connection.execute(
            "SELECT group_concat(body_id), group_concat(length(body)), CAST(group_concat(body, '') AS BLOB)"
            f" FROM {table(segment)} WHERE body_id IN ({places(ids)}) AND length(body) <= ?",
            (*ids, most),
        ).fetchone()
        if not keys:
            continue
        read, sizes_of = [int(key) for key in keys.split(",")], [int(length) for length in lengths.split(",")]
        if len(joined) != sum(sizes_of):  # older SQLite ends what it joins at the first zero byte
            found |= get_many(connection, read)
            continue
        begin = 0
        for body_id, size in zip(read, sizes_of, strict=True):
            found[body_id] = joined[begin : begin + size]
            begin += size
    return found


def erase(connection: sqlite3.Connection, body_ids: Iterable[int]) -> None:
    """Overwrite the bodies (at most some thousands) with zeros.

    Bodies that were erased before are skipped. The caller removes the references to the bodies in the same transaction,
    unless these references will not be followed.
    """
    for segment, ids in by_segment(body_ids).items():
        if not _exists(connection, segment):
            continue
        chosen = f"FROM {table(segment)} WHERE body_id IN ({places(ids)})"
        freed = connection.execute(
            f"SELECT ifnull(sum(length(body) + {ROW_OVERHEAD_BYTES}), 0) {chosen}", ids
        ).fetchone()[0]
        connection.execute(f"UPDATE {table(segment)} SET body = NULL WHERE body_id IN ({places(ids)})", ids)
        connection.execute(
            "UPDATE body_segments SET live_bytes = live_bytes - ? WHERE segment = ? AND NOT dropped", (freed, segment)
        )


def discard(connection: sqlite3.Connection, body_ids: Sequence[int]) -> None:
    """Erase bodies to which nothing will refer any more: at once if they are few and small, or else soon.

    What goes with a request can be any number of them: invites and welcomes of a whole group. To erase some hundred MiB
    in one transaction would hold up every sender for seconds. What goes at once is bounded by the transaction, which
    many requests share.
    """
    store = of_store(connection)
    if len(body_ids) <= DISCARDED_TOGETHER and (size := sum(sizes(connection, body_ids))) <= store.erasable:
        store.erasable -= size
        erase(connection, body_ids)
        return
    noted = "INSERT INTO discarded_bodies (discarded_body) SELECT value FROM json_each(?)"
    connection.execute(noted, (json.dumps(body_ids),))


def are_discarded(connection: sqlite3.Connection) -> bool:
    """Tell whether ``erase_discarded`` has anything to do."""
    return connection.execute("SELECT 1 FROM discarded_bodies LIMIT 1").fetchone() is not None


def erase_discarded(connection: sqlite3.Connection) -> bool:
    """Erase some of the bodies that were discarded; tell whether more may be left. It is a Step of a cleanup run."""
    rows = connection.execute(
        "SELECT discarded_body FROM discarded_bodies ORDER BY discarded_body LIMIT ?", (SWEPT,)
    ).fetchall()
    chosen = first_within(connection, [row[0] for row in rows], SWEPT_BYTES)
    connection.execute(f"DELETE FROM discarded_bodies WHERE discarded_body IN ({places(chosen)})", chosen)
    erase(connection, chosen)
    return bool(chosen)


def _reserve(connection: sqlite3.Connection, count: int, size: int) -> tuple[int, int]:
    """Return the segment that takes the next ``count`` bodies, and the last one's number there."""
    reserve = (
        "UPDATE body_segments SET bodies = bodies + ?1, total_bytes = total_bytes + ?2, live_bytes = live_bytes + ?2,"
        " sealed = total_bytes + ?2 > ?3 WHERE segment = (SELECT max(segment) FROM body_segments) AND NOT sealed"
        " RETURNING segment, bodies"
    )
    rows = connection.execute(reserve, (count, size, SEGMENT_BYTES)).fetchall()
    if not rows:
        segment = connection.execute("INSERT INTO body_segments DEFAULT VALUES").lastrowid
        connection.execute(f"CREATE TABLE {table(segment or 0)} (body_id INTEGER PRIMARY KEY, body BLOB) STRICT")
        rows = connection.execute(reserve, (count, size, SEGMENT_BYTES)).fetchall()
    return rows[0]["segment"], rows[0]["bodies"]


def _path(connection: sqlite3.Connection) -> Path:
    """Return the path of the database."""
    return Path(connection.execute("PRAGMA database_list").fetchone()[2])


def _exists(connection: sqlite3.Connection, segment: int) -> bool:
    return connection.execute("SELECT 1 FROM body_segments WHERE segment = ?", (segment,)).fetchone() is not None


def by_segment(body_ids: Iterable[int]) -> dict[int, list[int]]:
    """Return ``body_ids`` by their segments."""
    grouped: dict[int, list[int]] = defaultdict(list)
    for body_id in body_ids:
        grouped[body_id >> 32].append(body_id)
    return grouped


def table(segment: int) -> str:
    """Return the name of the table that a segment is."""
    return f"body_segment_{segment:d}"
