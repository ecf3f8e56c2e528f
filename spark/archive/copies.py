"""Deletes from the hot store what the archive serves, in an order that touches few pages.

Nobody follows a row to its body any more, so each step may be the last one before a crash: the next run goes on.
"""

import json
import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from functools import partial

from conclave.failpoints import reach
from conclave.store import bodies
from conclave.store.archive.moves import Range
from conclave.store.database import Step

CHUNK, CHUNK_BYTES = 256, 256 * 1024
"""How much is deleted between two looks at the clock: so many rows, and bytes of bodies."""

STRETCH = 60_000
"""So many copies lie in few enough pages to be deleted by group: their indexes are in that order."""

MOST_OTHERS = 0.1
"""If other bodies have no more than this part of a segment, they move out and it is dropped: soon more may be dead."""

_COPIES = """
SELECT json_group_array(message_id) FROM (
    SELECT message_id FROM messages WHERE group_key = ?1 AND sequence_num BETWEEN ?2
    AND min(?3, ifnull((SELECT archived_seq FROM groups WHERE group_key = ?1), ?3)) ORDER BY sequence_num
)
"""
"""The messages of a range that the archive serves now; none of a group that has not switched."""


def delete(connection: sqlite3.Connection, ranges: Collection[Range]) -> Iterator[Step]:
    """Yield the steps that delete the copies in ``ranges``: whole segments, the other bodies, and then the rows.

    Bodies go in the order in which they lie; rows stretch by stretch, by group: both touch a fraction of the pages
    that deleting message by message would. Other threads of the process work meanwhile, and a statement lets them
    in at each of its rows; so ids go in and out by the thousand, as JSON.
    """
    copies: list[int] = []
    for each in ranges:
        found = connection.execute(_COPIES, (each.group_key, each.first_seq, each.last_seq))
        copies += json.loads(found.fetchone()[0])
    if not copies:
        return
    in_place = sorted(copies)
    bounds = in_place[::STRETCH]
    stretches: list[list[int]] = [[] for _ in bounds]
    for message_id in copies:
        stretches[bisect_right(bounds, message_id) - 1].append(message_id)
    yield from bodies.drop_copies(connection, copies, MOST_OTHERS)
    yield _Shortening(partial(_erase_some, connection), in_place).step
    for stretch in stretches:
        yield _Shortening(partial(_delete_rows, connection), stretch).step


class _Shortening:
    """Works a list off from its beginning, CHUNK at most a step; ``work`` returns how many it has done."""

    def __init__(self, work: Callable[[list[int]], int], rest: list[int]) -> None:
        self._work = work
        self._rest = rest
        self._done = 0

    def step(self) -> bool:
        self._done += self._work(self._rest[self._done : self._done + CHUNK])
        return self._done < len(self._rest)


def _erase_some(connection: sqlite3.Connection, message_ids: list[int]) -> int:
    chosen = bodies.first_within(connection, message_ids, CHUNK_BYTES)
    bodies.erase(connection, chosen)
    reach("archive.copies_erased")
    return len(chosen)


def _delete_rows(connection: sqlite3.Connection, message_ids: list[int]) -> int:
    connection.execute(
        "DELETE FROM messages WHERE message_id IN (SELECT value FROM json_each(?))", (json.dumps(message_ids),)
    )
    reach("archive.copies_chunk_deleted")
    return len(message_ids)
