"""Takes a group's archived messages back into the hot store: first copies, then the border.

Readers ignore copies up to the border, and cleanup deletes those of a restore that did not end. The border changes in
one transaction. The caller runs each function in a transaction and holds the run lock.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from conclave.keys.cipher import ADDED_BYTES
from conclave.store import bodies
from conclave.store.archive import moves
from conclave.store.resources.messages import COLUMNS


class RestoreError(Exception):
    """The group cannot be restored now. The message is one line for the operator."""


@dataclass(frozen=True)
class ArchivedMessage:
    """A message as the archive has it, encrypted; ``created_at`` in Unix seconds."""

    sequence_num: int
    sender_id: bytes
    is_commit: bool
    created_at: int
    mls_message: bytes


def put_back(connection: sqlite3.Connection, group_key: int, messages: Sequence[ArchivedMessage]) -> None:
    """Store copies of some messages that have no copies yet. Raises RestoreError if the group was deleted."""
    _require_group(connection, group_key)
    bodies.put_messages(
        connection, [(bodies.message_id(group_key, each.sequence_num), each.mls_message) for each in messages]
    )
    connection.executemany(
        f"INSERT INTO messages ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (
                *(group_key, each.sequence_num, each.sender_id, each.is_commit, each.created_at),
                len(each.mls_message) - ADDED_BYTES,
            )
            for each in messages
        ],
    )


def switch_back(connection: sqlite3.Connection, group_key: int, count: int) -> None:
    """Serve a group from the hot store, which must have ``count`` copies. Raises RestoreError.

    The index does not have them any more. Their messages stay in the table until the partitions are reclaimed. Readers
    that know the former border may not have read the table by then: they look again, see ``relaid``.
    """
    border = _require_group(connection, group_key)
    copies = connection.execute(
        "SELECT count(*) FROM messages WHERE group_key = ? AND sequence_num <= ?", (group_key, border)
    ).fetchone()[0]
    if copies != count:
        raise RestoreError(f"{copies} copies are there of {count} messages: do a cleanup run, then try again")
    connection.execute("UPDATE groups SET archived_seq = 0 WHERE group_key = ?", (group_key,))
    connection.execute(
        "INSERT INTO archive_returned (lifetime, span, group_key, messages)"
        " SELECT lifetime, span, group_key, message_count FROM archive_parts WHERE group_key = ?"
        " ON CONFLICT DO UPDATE SET messages = messages + excluded.messages",
        (group_key,),
    )
    moves.settle_parts(connection, group_key, {each.key: None for each in moves.parts(connection, group_key)})
    moves.note_relaid(connection)


def _require_group(connection: sqlite3.Connection, group_key: int) -> int:
    """Return the group's border. Raises RestoreError if the group was deleted."""
    row = connection.execute("SELECT archived_seq FROM groups WHERE group_key = ?", (group_key,)).fetchone()
    if row is None:
        raise RestoreError("the group was deleted")
    return int(row[0])
