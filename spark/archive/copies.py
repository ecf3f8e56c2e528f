"""Deletes copies from the hot store: messages that the archive serves.

No reader looks at these rows any more. So a crash after any step does no harm: the next run continues.
"""

import sqlite3
from collections.abc import Collection, Iterator
from functools import partial

from conclave.failpoints import reach
from conclave.store import bodies
from conclave.store.archive.moves import Range
from conclave.store.engine.sqlite import Step

CHUNK = 256
"""A step deletes at most 256 messages."""

_COPIES = """
SELECT sequence_num FROM messages WHERE group_key = ?1 AND sequence_num BETWEEN ?2
AND min(?3, ifnull((SELECT archived_seq FROM groups WHERE group_key = ?1), ?3)) ORDER BY sequence_num LIMIT ?4
"""
"""Messages of a range that the archive serves now; none if the group has not switched to it."""


def delete(connection: sqlite3.Connection, ranges: Collection[Range]) -> Iterator[Step]:
    """Yield the steps that delete the copies in ``ranges``. Their keys stay: the archive has the messages."""
    for each in ranges:
        yield partial(_delete_some, connection, each)


def _delete_some(connection: sqlite3.Connection, within: Range) -> bool:
    rows = connection.execute(_COPIES, (within.group_key, within.first_seq, within.last_seq, CHUNK)).fetchall()
    if not rows:
        return False
    values = within.group_key, rows[0][0], rows[-1][0]
    connection.execute("DELETE FROM messages WHERE group_key = ? AND sequence_num BETWEEN ? AND ?", values)
    bodies.delete_of_messages(connection, [bodies.message_id(within.group_key, row[0]) for row in rows])
    reach("archive.copies_chunk_deleted")
    return len(rows) == CHUNK
