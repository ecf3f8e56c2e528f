"""Bodies, the data that only clients can read: stores them, and erases them without a trace.

``secure_delete`` zeroes what SQLite frees. It does not zero the stale copies that SQLite leaves when it moves a live
row. Deleting rows makes SQLite merge half-empty pages; the old place of a moved row then stays readable in the unused
middle of a page, even after that row was erased too. So rows of body tables are never deleted one by one.

A body is erased by an UPDATE to NULL, which zeroes it where it lies and moves nothing. The empty rows go with their
whole table. Bodies are appended to segments, and each segment is a table. Once enough of a segment is dead,
``compact`` appends its living bodies to the newest segment and marks the segment as dropped; then its table is emptied
and removed.
"""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

from conclave.failpoints import reach
from conclave.store.engine.connection import of_store
from conclave.store.engine.faults import StoreFullError, free_bytes
from conclave.store.engine.sqlite import ROWS_A_STATEMENT, Step, insert_many, places

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

LAST_FREE_BYTES = 2 * 1024 * 1024
"""BEYOND_ROOM_BYTES are not given while less than 2 MiB of the disk are free.

That rest is for changes without a body: a user who joins and leaves again and again must not take the last of it.
"""

DEAD_SHARE = 0.25
"""A segment is compacted when at least a quarter of its bytes is dead."""

MOST_DEAD = 0.125
"""More segments are compacted if otherwise the dead bytes of all were more than an eighth of the living ones.

But not for less than SEGMENT_BYTES. So the file stays below 1.2 times the size that it would have if made anew.
"""

MOVED, MOVED_SHARE = 32, 1 / 512
"""A step moves at most 32 bodies, with at most a 512th of SEGMENT_BYTES (64 KiB) together, but at least one body."""

MOVED_TOGETHER = 8192
"""Of 8,192 bodies that lie next to each other, those of a group are moved one after the other.

Their owners lie scattered in the indexes, which have them by group. So far fewer pages change.
"""

LISTED, LOOKED_THROUGH = 512, 2048
"""A step lists at most 512 bodies that are to be moved, and looks for them at no more than 2,048, erased ones included.

Tens of thousands that lie next to each other may be erased.
"""

DROPPED = 256
"""A step removes at most 256 bodies of a dropped segment."""

DROPPED_BYTES = 64 * 1024
"""A step removes at most 64 KiB of bodies of a dropped segment, but at least one body."""

FREED_PAGES = 32
"""A step returns at most 32 pages to the file system: more than DROPPED_BYTES take."""

OWNERS = (
    ("messages", "message_id"),
    ("groups", "group_info_body"),
    ("invites", "commit_body"),
    ("invites", "welcome_body"),
    ("invites", "group_info_body"),
    ("key_packages", "package_body"),
    ("welcomes", "welcome_body"),
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
        insert_many(connection, f"INSERT INTO {_table(segment)} (body_id, body)", list(rows), most)
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
    for segment, ids in _by_segment(body_ids).items():
        rows = connection.execute(
            f"SELECT body_id, body FROM {_table(segment)} WHERE body_id IN ({places(ids)})",
            ids,
        )
        found.update(rows.fetchall())
    return found


def get(connection: sqlite3.Connection, body_id: int) -> bytes:
    """Return one body."""
    return get_many(connection, [body_id])[body_id]


def first_within(connection: sqlite3.Connection, body_ids: Sequence[int], limit: int) -> list[int]:
    """Return the first of ``body_ids`` that have at most ``limit`` bytes together, but at least one."""
    total = 0
    for count, size in enumerate(sizes(connection, body_ids)):
        total += size
        if total > limit:
            return list(body_ids[: max(1, count)])
    return list(body_ids)


def sizes(connection: sqlite3.Connection, body_ids: Sequence[int]) -> list[int]:
    """Return how many bytes each of ``body_ids`` has. An erased body has 0."""
    found: dict[int, int] = {}
    for segment, ids in _by_segment(body_ids).items():
        if not _exists(connection, segment):
            continue
        rows = connection.execute(
            f"SELECT body_id, length(body) FROM {_table(segment)} WHERE body_id IN ({places(ids)})", ids
        )
        found.update((row[0], row[1] or 0) for row in rows)
    return [found.get(body_id, 0) for body_id in body_ids]


def total_size(connection: sqlite3.Connection, body_ids: Iterable[int]) -> int:
    """Return how many bytes ``body_ids`` (none erased) have together. They are measured MEASURED at a time."""
    total, left = 0, iter(body_ids)
    while some := list(islice(left, MEASURED)):
        for segment, ids in _by_segment(some).items():
            query = f"SELECT ifnull(sum(length(body)), 0) FROM {_table(segment)} WHERE body_id IN ({places(ids)})"
            total += connection.execute(query, ids).fetchone()[0]
    return total


def get_small(connection: sqlite3.Connection, body_ids: Iterable[int], most: int) -> dict[int, bytes]:
    """Return those bodies that have at most ``most`` bytes each, by id. None of ``body_ids`` is erased.

    SQLite gives all bodies of a segment as one row: beside a busy event loop, a thread waits for the interpreter at
    each row. So they have to be small together.
    """
    found: dict[int, bytes] = {}
    for segment, ids in _by_segment(body_ids).items():
        keys, lengths, joined = connection.execute(
            "SELECT group_concat(body_id), group_concat(length(body)), CAST(group_concat(body, '') AS BLOB)"
            f" FROM {_table(segment)} WHERE body_id IN ({places(ids)}) AND length(body) <= ?",
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
    for segment, ids in _by_segment(body_ids).items():
        if not _exists(connection, segment):
            continue
        chosen = f"FROM {_table(segment)} WHERE body_id IN ({places(ids)})"
        freed = connection.execute(
            f"SELECT ifnull(sum(length(body) + {ROW_OVERHEAD_BYTES}), 0) {chosen}", ids
        ).fetchone()[0]
        connection.execute(f"UPDATE {_table(segment)} SET body = NULL WHERE body_id IN ({places(ids)})", ids)
        connection.execute(
            "UPDATE body_segments SET live_bytes = live_bytes - ? WHERE segment = ? AND NOT dropped", (freed, segment)
        )


def compact(connection: sqlite3.Connection) -> Iterator[Step]:
    """Yield the steps that give back the space of dead bodies, one segment after the other.

    See ``database.Step``. Stopping between two steps, or losing their transaction, leaves a consistent store.
    """
    # The emptiest first: on a full disk they give the room that the others need to move their living bodies.
    for segment, is_dropped in _worth_compacting(_segments(connection)):
        yield from _drop(connection, segment, None if is_dropped else _living(connection, segment))


def drop_copies(connection: sqlite3.Connection, copies: Iterable[int], most_others: float) -> Iterator[Step]:
    """Yield the steps that drop whole segments which consist almost only of ``copies``.

    ``copies``: bodies that are not erased, but are not referred to any more. ``most_others``: a sealed segment with
    copies is dropped if its other living bodies have at most this share of its bytes; they are moved out before.
    The steps are like those of ``compact``.
    """
    copies_of = _by_segment(copies)
    chosen: list[tuple[int, list[int] | None]] = []
    for segment, total, _, is_sealed, is_dropped in _segments(connection):
        if segment in copies_of and is_sealed:
            others = None if is_dropped else _others(connection, segment, copies_of[segment], most_others * total)
            if is_dropped or others is not None:
                chosen.append((segment, others))
    for segment, others in chosen:
        yield from _drop(connection, segment, None if others is None else iter([others]))


def free_pages(connection: sqlite3.Connection) -> bool:
    """Return at most FREED_PAGES free pages to the file system: a step, like those of ``compact``.

    This is done soon after pages become free: SQLite searches the list of all free pages for each one. A pragma that
    is to free several pages gives a row for each, and Python takes only the first.
    """
    free: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    for _ in range(min(free, FREED_PAGES)):
        connection.execute("PRAGMA incremental_vacuum(1)").fetchall()
    left: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    reach("erase.freed")
    return 0 < left < free


def _segments(connection: sqlite3.Connection) -> list[tuple[int, int, int, int, int]]:
    """Return for each segment: its number, total bytes, live bytes, whether it is sealed, whether it is dropped."""
    return connection.execute(
        "SELECT segment, total_bytes, live_bytes, sealed, dropped FROM body_segments WHERE total_bytes > 0"
    ).fetchall()


def _worth_compacting(segments: list[tuple[int, int, int, int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the segments to compact, and whether each is marked as dropped; those that take the least moving first.

    See DEAD_SHARE and MOST_DEAD.
    """
    living = sum(live for _, _, live, _, _ in segments)
    dead = sum(total - live for _, total, live, _, _ in segments)
    for segment, total, live, _, is_dropped in sorted(segments, key=lambda each: each[2] / each[1]):
        is_worth_it = total - live >= DEAD_SHARE * total or dead > max(MOST_DEAD * living, SEGMENT_BYTES)
        if is_dropped or (total > live and is_worth_it):
            dead -= total - live
            yield segment, is_dropped


def _drop(connection: sqlite3.Connection, segment: int, survivors: Iterator[list[int]] | None) -> Iterator[Step]:
    """Yield the steps that move ``survivors`` out of a segment and drop it.

    ``survivors``: lists of body ids; None if the segment is marked as dropped already.
    """
    if survivors is not None:
        yield partial(_seal, connection, segment)
        yield _Moving(connection, survivors).step
        yield partial(_mark_dropped, connection, segment)
    yield partial(_drop_some, connection, segment)
    yield partial(free_pages, connection)


def _others(connection: sqlite3.Connection, segment: int, copies: list[int], most: float) -> list[int] | None:
    """Return the living bodies of a segment that are not among ``copies``.

    None if they have more than ``most`` bytes together.
    """
    living = connection.execute(f"SELECT json_group_array(body_id) FROM {_table(segment)} WHERE body IS NOT NULL")
    others = sorted(set(json.loads(living.fetchone()[0])).difference(copies))
    size = connection.execute(
        f"SELECT ifnull(sum(length(body) + {ROW_OVERHEAD_BYTES}), 0) FROM {_table(segment)}"
        " WHERE body_id IN (SELECT value FROM json_each(?))",
        (json.dumps(others),),
    )
    return others if size.fetchone()[0] <= most else None


def _living(connection: sqlite3.Connection, segment: int) -> Iterator[list[int]]:
    """Yield the ids of the living bodies of a segment, in blocks of MOVED_TOGETHER; within a block group by group.

    They are looked up as they are asked for: an empty list says that a block is not complete yet.
    """
    query = (
        f"SELECT body_id, ifnull(group_key, 0) FROM (SELECT body_id FROM {_table(segment)} WHERE body_id > ?"
        f" AND body_id <= ? AND body IS NOT NULL ORDER BY body_id LIMIT {LISTED}) LEFT JOIN messages"
        " ON message_id = body_id ORDER BY 1"
    )
    end: int = connection.execute(f"SELECT ifnull(max(body_id), 0) FROM {_table(segment)}").fetchone()[0]
    block: list[tuple[int, int]] = []
    last = segment << 32
    while last < end:
        bound = min(last + LOOKED_THROUGH, end)
        rows = connection.execute(query, (last, bound)).fetchall()
        last = rows[-1][0] if len(rows) == LISTED else bound
        block += rows
        if len(block) >= MOVED_TOGETHER or last == end:
            block.sort(key=itemgetter(1))  # they came by their ids, and so they stay within a group
            yield [body_id for body_id, _ in block]
            block = []
        else:
            yield []


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
        connection.execute(f"CREATE TABLE {_table(segment or 0)} (body_id INTEGER PRIMARY KEY, body BLOB) STRICT")
        rows = connection.execute(reserve, (count, size, SEGMENT_BYTES)).fetchall()
    return rows[0]["segment"], rows[0]["bodies"]


def _seal(connection: sqlite3.Connection, segment: int) -> bool:
    connection.execute("UPDATE body_segments SET sealed = 1 WHERE segment = ?", (segment,))
    reach("erase.sealed")
    return False


class _Moving:
    """Moves bodies of one segment to the newest, some in each step. ``survivors``: lists of their ids."""

    def __init__(self, connection: sqlite3.Connection, survivors: Iterator[list[int]]) -> None:
        self._connection = connection
        self._survivors = survivors
        self._listed: list[int] = []

    def step(self) -> bool:
        """Move at most MOVED bodies with a MOVED_SHARE of a segment, but at least one; a step of ``compact``."""
        if not self._listed:
            found = next(self._survivors, None)
            self._listed = found or []
            return found is not None
        chosen = first_within(self._connection, self._listed[:MOVED], int(MOVED_SHARE * SEGMENT_BYTES))
        del self._listed[: len(chosen)]
        _move(self._connection, chosen)
        reach("erase.moved")
        return True


def _move(connection: sqlite3.Connection, body_ids: Sequence[int]) -> None:
    """Move bodies of one segment to the newest, and erase them where they were."""
    found = get_many(connection, body_ids)
    old = [body_id for body_id in body_ids if found[body_id] is not None]  # some may be erased since they were listed
    if old:
        new = put_many(connection, [found[body_id] for body_id in old])
        _follow(connection, dict(zip(old, new, strict=True)))
        erase(connection, old)


def _follow(connection: sqlite3.Connection, moved: dict[int, int]) -> None:
    """Make the owners of bodies refer to their new ids. ``moved``: new ids by old ones. Each body has one owner."""
    left = list(moved)
    for owner, column in OWNERS:
        rows = connection.execute(f"SELECT {column} FROM {owner} WHERE {column} IN ({places(left)})", left).fetchall()
        connection.executemany(
            f"UPDATE {owner} SET {column} = ? WHERE {column} = ?", [(moved[row[0]], row[0]) for row in rows]
        )
        left = sorted(set(left).difference(row[0] for row in rows))
        if not left:
            return


def _mark_dropped(connection: sqlite3.Connection, segment: int) -> bool:
    connection.execute("UPDATE body_segments SET dropped = 1, live_bytes = 0 WHERE segment = ?", (segment,))
    reach("erase.segment_marked")
    return False


def _drop_some(connection: sqlite3.Connection, segment: int) -> bool:
    table = _table(segment)
    first = f"SELECT body_id, ifnull(length(body), 0) AS size FROM {table} ORDER BY body_id LIMIT {DROPPED}"
    last, size = connection.execute(f"SELECT max(body_id), sum(size) FROM ({first})").fetchone()
    if last is not None and size > DROPPED_BYTES:
        last = _last_within(connection.execute(first), DROPPED_BYTES)
    if last is not None:
        connection.execute(f"DELETE FROM {table} WHERE body_id <= ?", (last,))
        reach("erase.emptied")
        free_pages(connection)  # in the same transaction: a page that leaves the file is not written again
        return True
    connection.execute(f"DROP TABLE {table}")
    connection.execute("DELETE FROM body_segments WHERE segment = ?", (segment,))
    reach("erase.dropped")
    return False


def _last_within(sizes: Iterable[tuple[int, int]], limit: int) -> int:
    """Return the id of the last body up to which all have at most ``limit`` bytes together.

    ``sizes``: ids with sizes, ascending. At least the first id is returned.
    """
    last, total = 0, 0
    for body_id, size in sizes:
        total += size
        if last and total > limit:
            break
        last = body_id
    return last


def _path(connection: sqlite3.Connection) -> Path:
    """Return the path of the database."""
    return Path(connection.execute("PRAGMA database_list").fetchone()[2])


def _exists(connection: sqlite3.Connection, segment: int) -> bool:
    return connection.execute("SELECT 1 FROM body_segments WHERE segment = ?", (segment,)).fetchone() is not None


def _by_segment(body_ids: Iterable[int]) -> dict[int, list[int]]:
    grouped: dict[int, list[int]] = defaultdict(list)
    for body_id in body_ids:
        grouped[body_id >> 32].append(body_id)
    return grouped


def _table(segment: int) -> str:
    return f"body_segment_{segment:d}"
