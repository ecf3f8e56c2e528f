"""Deletes copies from the hot store, messages that the archive serves, so that few pages change.

No reader follows these rows to their bodies any more. So a crash after any step does no harm: the next run continues.
"""

import json
import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from functools import partial

from conclave.failpoints import reach
from conclave.store import bodies, compaction
from conclave.store.archive.moves import Range
from conclave.store.engine.sqlite import Step

CHUNK = 256
"""A step deletes at most 256 rows, or erases at most 256 bodies."""

CHUNK_BYTES = 256 * 1024
"""A step erases at most 256 KiB of bodies, but at least one body."""

STRETCH_ROWS = 60_000
"""Rows are deleted in stretches of 60,000 that lie next to each other.

Within a stretch the order is by group, as in the indexes: so many rows lie in few enough pages.
"""

MOST_OTHERS = 0.1
"""A segment is dropped if bodies other than copies have at most a tenth of its bytes; these move out before.

The limit is low, since more of the others may be dead soon and then need not move.
"""

_COPIES = """
SELECT json_group_array(message_id) FROM (
    SELECT message_id FROM messages WHERE group_key = ?1 AND sequence_num BETWEEN ?2
    AND min(?3, ifnull((SELECT archived_seq FROM groups WHERE group_key = ?1), ?3)) ORDER BY sequence_num
)
"""
"""The messages of a range that the archive serves now; none if the group has not switched to it."""


def delete(connection: sqlite3.Connection, ranges: Collection[Range]) -> Iterator[Step]:
    """Yield the steps that delete the copies in ``ranges``: whole segments, other bodies, and then the rows.

    Bodies are erased in the order in which they lie. Rows are deleted STRETCH_ROWS at a time, ordered by group. Both
    change far fewer pages than deleting one message after the other. Other threads of the process work meanwhile, and
    at each row of a result Python may switch to them; so ids go in and out as JSON, thousands in one value.
    """
    copies: list[int] = []
    for each in ranges:
        found = connection.execute(_COPIES, (each.group_key, each.first_seq, each.last_seq))
        copies += json.loads(found.fetchone()[0])
    if not copies:
        return
    in_place = sorted(copies)
    bounds = in_place[::STRETCH_ROWS]
    stretches: list[list[int]] = [[] for _ in bounds]
    for message_id in copies:
        stretches[bisect_right(bounds, message_id) - 1].append(message_id)
    yield from compaction.drop_copies(connection, copies, MOST_OTHERS)
    yield _Shortening(partial(_erase_some, connection), in_place).step
    for stretch in stretches:
        yield _Shortening(partial(_delete_rows, connection), stretch).step


class _Shortening:
    """Works through a list from its beginning, at most CHUNK ids in a step.

    ``work`` gets the next ids, and returns how many of them it has done.
    """

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
