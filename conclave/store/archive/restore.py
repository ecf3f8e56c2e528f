"""Takes a group's archived messages back into the hot store: copies first, then the border, in one transaction.

Readers ignore copies up to the border, and cleanup deletes those of a restore that did not end. All functions want to
be inside a transaction of the caller's, and the run lock.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from conclave.store import bodies


class RestoreError(Exception):
    """The group cannot be restored as it is now; the message is one line for the operator."""


@dataclass(frozen=True)
class Archived:
    """A message as the archive has it; ``created_at`` in Unix seconds."""

    sequence_num: int
    sender_id: bytes
    is_commit: bool
    created_at: int
    mls_message: bytes


def put_back(connection: sqlite3.Connection, group_key: int, messages: Sequence[Archived]) -> None:
    """Store copies of some messages, of which there are none. Raises RestoreError."""
    _require_group(connection, group_key)
    connection.executemany(
        "INSERT INTO messages (message_id, group_key, sequence_num, sender_id, is_commit, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        [
            (
                bodies.put(connection, message.mls_message),
                group_key,
                message.sequence_num,
                message.sender_id,
                message.is_commit,
                message.created_at,
            )
            for message in messages
        ],
    )


def switch_back(connection: sqlite3.Connection, group_key: int, count: int) -> None:
    """Serve a group from the hot store, which must have ``count`` copies. Raises RestoreError.

    The index keeps its rows, above the border now, so that the next run knows what to take from the table: readers of
    the former border may still be at it.
    """
    border = _require_group(connection, group_key)
    copies = connection.execute(
        "SELECT count(*) FROM messages WHERE group_key = ? AND sequence_num <= ?", (group_key, border)
    ).fetchone()[0]
    if copies != count:
        raise RestoreError(f"{copies} copies are there of {count} messages: do a cleanup run, then try again")
    connection.execute("UPDATE groups SET archived_seq = 0 WHERE group_key = ?", (group_key,))


def _require_group(connection: sqlite3.Connection, group_key: int) -> int:
    """Return the group's border. Raises RestoreError if it was deleted."""
    row = connection.execute("SELECT archived_seq FROM groups WHERE group_key = ?", (group_key,)).fetchone()
    if row is None:
        raise RestoreError("the group was deleted")
    return int(row[0])
