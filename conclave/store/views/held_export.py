"""The export of a user under a legal hold, which includes hidden messages, and also works for deleted accounts."""

import sqlite3
from typing import NamedTuple

from conclave.store import bodies
from conclave.store.sender_index import SENT
from conclave.store.views.export import PAGE_BYTES, PAGE_MESSAGES, WINDOW, ExportPage, OwnMessage


class HeldGroup(NamedTuple):
    """A group, existing or deleted, that may have stored messages."""

    group_key: int
    group_id: bytes
    archived_seq: int
    """Messages up to this number are in the archive; 0 in a deleted group, which has no border."""
    is_deleted: bool


_STORED_GROUPS = """
SELECT group_key, group_id, archived_seq, FALSE AS is_deleted FROM groups
UNION ALL SELECT group_key, group_id, 0, TRUE FROM tombstones
"""


def held_groups(connection: sqlite3.Connection) -> dict[int, HeldGroup]:
    """Return all groups that may have stored messages, including deleted ones, by key."""
    return {row[0]: HeldGroup(*row) for row in connection.execute(_STORED_GROUPS)}


def groups_of_sender(connection: sqlite3.Connection, user_id: bytes) -> list[HeldGroup]:
    """Return the groups, including deleted ones, in which the hot store has messages of a user."""
    rows = connection.execute(
        f"SELECT * FROM ({_STORED_GROUPS}) WHERE group_key IN (SELECT group_key FROM {SENT} WHERE sender_id = ?)"
        " ORDER BY group_key",
        (user_id,),
    )
    return [HeldGroup(*row) for row in rows]


def page(connection: sqlite3.Connection, group: HeldGroup, user_id: bytes, after: int) -> ExportPage:
    """Return messages of a user in the hot store with numbers greater than ``after``, including hidden ones."""
    begin = max(after, group.archived_seq)
    end = connection.execute(
        "SELECT max(sequence_num) FROM (SELECT sequence_num FROM messages WHERE group_key = ? AND sequence_num > ?"
        " ORDER BY sequence_num LIMIT ?)",
        (group.group_key, begin, WINDOW),
    ).fetchone()[0]
    if end is None:
        return ExportPage([], None)
    rows = connection.execute(
        "SELECT sequence_num, messages.created_at, is_commit, ifnull(seconds, 0) FROM messages"
        " LEFT JOIN self_destructing USING (group_key, sequence_num) WHERE group_key = ? AND sender_id = ?"
        " AND sequence_num > ? AND sequence_num <= ? ORDER BY sequence_num LIMIT ?",
        (group.group_key, user_id, begin, end, PAGE_MESSAGES),
    ).fetchall()
    messages: list[OwnMessage] = []
    size = 0
    for number, created_at, is_commit, seconds in rows:
        body = bodies.of_message(connection, group.group_key, group.group_id, number)
        if body is not None:
            messages.append(OwnMessage(number, created_at, bool(is_commit), seconds, body))
            size += len(body)
        if size > PAGE_BYTES:
            return ExportPage(messages, number)
    return ExportPage(messages, rows[-1]["sequence_num"] if len(rows) == PAGE_MESSAGES else end)
