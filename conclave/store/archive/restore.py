"""Moves a group's archived messages back into the hot store: first copies them, then changes the border.

Readers ignore copies up to the border, and cleanup deletes those of an interrupted restore. The border changes in one
transaction. The caller runs each function in a transaction and holds the run lock.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from conclave.keys.cipher import OVERHEAD_BYTES
from conclave.store import bodies
from conclave.store.archive import moves
from conclave.store.resources.messages import COLUMNS


class RestoreError(Exception):
    """The group cannot be restored now. The message is one line for the operator."""


@dataclass(frozen=True)
class ArchivedMessage:
    """An archived message, encrypted. ``created_at``: Unix seconds."""

    sequence_num: int
    sender_id: bytes
    is_commit: bool
    created_at: int
    mls_message: bytes


def store_copies(connection: sqlite3.Connection, group_key: int, messages: Sequence[ArchivedMessage]) -> None:
    """Store copies of archived messages, without replacing copies. Raises RestoreError if the group was deleted."""
    _require_group(connection, group_key)
    bodies.put_messages(
        connection, [(bodies.message_id(group_key, each.sequence_num), each.mls_message) for each in messages]
    )
    connection.executemany(
        f"INSERT INTO messages ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (
                *(group_key, each.sequence_num, each.sender_id, each.is_commit, each.created_at),
                len(each.mls_message) - OVERHEAD_BYTES,
            )
            for each in messages
        ],
    )


def switch_back(connection: sqlite3.Connection, group_key: int, count: int) -> None:
    """Serve a group from the hot store, which must have ``count`` copies. Raises RestoreError.

    They are removed from the index, and stay in the table until the partitions are reclaimed. Readers that have the old
    border and have not read the table yet read again, see ``note_relaid``.
    """
    border = _require_group(connection, group_key)
    copies = connection.execute(
        "SELECT count(*) FROM messages WHERE group_key = ? AND sequence_num <= ?", (group_key, border)
    ).fetchone()[0]
    if copies != count:
        raise RestoreError(f"found {copies} copies of {count} messages: do a cleanup run, then try again")
    connection.execute("UPDATE groups SET archived_seq = 0 WHERE group_key = ?", (group_key,))
    connection.execute(
        "INSERT INTO archive_returned (lifetime, span, group_key, messages)"
        " SELECT lifetime, span, group_key, message_count FROM archive_parts WHERE group_key = ?"
        " ON CONFLICT DO UPDATE SET messages = messages + excluded.messages",
        (group_key,),
    )
    moves.replace_parts(connection, group_key, {each.key: None for each in moves.parts(connection, group_key)})
    moves.note_relaid(connection)


def _require_group(connection: sqlite3.Connection, group_key: int) -> int:
    """Return the group's border. Raises RestoreError if the group was deleted."""
    row = connection.execute("SELECT archived_seq FROM groups WHERE group_key = ?", (group_key,)).fetchone()
    if row is None:
        raise RestoreError("the group was deleted")
    return int(row[0])
