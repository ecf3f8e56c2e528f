"""Gives back the space of dead bodies: what lives in a segment moves to the newest one, and the segment goes.

A segment of which enough is dead is compacted. Its living bodies are appended to the newest segment, and it is marked
as dropped; then its table is emptied and removed.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter

from conclave.failpoints import reach
from conclave.store import bodies
from conclave.store.engine.connection import of_store
from conclave.store.engine.sqlite import Step, places

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
"""A step has at most 32 pages returned to the file system: more than DROPPED_BYTES take."""


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
    copies_of = bodies.by_segment(copies)
    chosen: list[tuple[int, list[int] | None]] = []
    for segment, total, _, is_sealed, is_dropped in _segments(connection):
        if segment in copies_of and is_sealed:
            others = None if is_dropped else _others(connection, segment, copies_of[segment], most_others * total)
            if is_dropped or others is not None:
                chosen.append((segment, others))
    for segment, others in chosen:
        yield from _drop(connection, segment, None if others is None else iter([others]))


def free_pages(connection: sqlite3.Connection) -> bool:
    """Have FREED_PAGES more free pages go back to the file system: a step, like those of ``compact``.

    They go at the end of the transaction, see ``sqlite.write_transaction``. This is asked for soon after pages become
    free: SQLite searches the list of all free pages for each one.
    """
    if not connection.execute("PRAGMA auto_vacuum").fetchone()[0]:
        return False  # a file that was made anew by other tools
    own = of_store(connection)
    free: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    own.pages_to_return = min(free, own.pages_to_return + FREED_PAGES)
    return own.pages_to_return < free


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
        is_worth_it = total - live >= DEAD_SHARE * total or dead > max(MOST_DEAD * living, bodies.SEGMENT_BYTES)
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
    living = connection.execute(f"SELECT json_group_array(body_id) FROM {bodies.table(segment)} WHERE body IS NOT NULL")
    others = sorted(set(json.loads(living.fetchone()[0])).difference(copies))
    size = connection.execute(
        f"SELECT ifnull(sum(length(body) + {bodies.ROW_OVERHEAD_BYTES}), 0) FROM {bodies.table(segment)}"
        " WHERE body_id IN (SELECT value FROM json_each(?))",
        (json.dumps(others),),
    )
    return others if size.fetchone()[0] <= most else None


def _living(connection: sqlite3.Connection, segment: int) -> Iterator[list[int]]:
    """Yield the ids of the living bodies of a segment, in blocks of MOVED_TOGETHER; within a block group by group.

    They are looked up as they are asked for: an empty list says that a block is not complete yet.
    """
    query = (
        f"SELECT body_id, ifnull(group_key, 0) FROM (SELECT body_id FROM {bodies.table(segment)} WHERE body_id > ?"
        f" AND body_id <= ? AND body IS NOT NULL ORDER BY body_id LIMIT {LISTED}) LEFT JOIN messages"
        " ON message_id = body_id ORDER BY 1"
    )
    end: int = connection.execute(f"SELECT ifnull(max(body_id), 0) FROM {bodies.table(segment)}").fetchone()[0]
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
        chosen = bodies.first_within(self._connection, self._listed[:MOVED], int(MOVED_SHARE * bodies.SEGMENT_BYTES))
        del self._listed[: len(chosen)]
        _move(self._connection, chosen)
        reach("erase.moved")
        return True


def _move(connection: sqlite3.Connection, body_ids: Sequence[int]) -> None:
    """Move bodies of one segment to the newest, and erase them where they were."""
    found = bodies.get_many(connection, body_ids)
    old = [body_id for body_id in body_ids if found[body_id] is not None]  # some may be erased since they were listed
    if old:
        new = bodies.put_many(connection, [found[body_id] for body_id in old])
        _follow(connection, dict(zip(old, new, strict=True)))
        bodies.erase(connection, old)


def _follow(connection: sqlite3.Connection, moved: dict[int, int]) -> None:
    """Make the owners of bodies refer to their new ids. ``moved``: new ids by old ones. Each body has one owner."""
    left = list(moved)
    for owner, column in bodies.OWNERS:
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
    table = bodies.table(segment)
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
