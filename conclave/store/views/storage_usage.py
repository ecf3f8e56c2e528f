"""The storage usage of groups and users, for quotas."""

import sqlite3
from typing import NamedTuple

from conclave.store import bodies
from conclave.store.resources.messages import usage_of_sender


class StorageUsage(NamedTuple):
    """The number of messages, and the bytes of their bodies and of pending invites."""

    messages: int
    body_bytes: int


def of_group(
    connection: sqlite3.Connection, group_id: bytes, user_id: bytes, *, bytes_too: bool
) -> StorageUsage | None:
    """Return a group's usage in both tiers, for a user who wants to send to it or to join it.

    None if the user can do neither, or the group does not exist: so response times reveal neither its existence nor its
    size. Reads an index entry for each message in the hot store. ``bytes_too``: sum the bytes of bodies, invites and
    welcomes too; otherwise they are 0.
    """
    group = connection.execute(
        "SELECT group_key, archived_seq FROM groups WHERE group_id = ? AND (visibility = 'public'"
        " OR EXISTS (SELECT 1 FROM members WHERE members.group_key = groups.group_key AND user_id = ?))",
        (group_id, user_id),
    ).fetchone()
    if group is None:
        return None
    archived, archived_bytes = connection.execute(
        "SELECT ifnull(sum(message_count), 0), ifnull(sum(body_bytes), 0) FROM archive_parts WHERE group_key = ?",
        (group["group_key"],),
    ).fetchone()
    # Skip hot copies of archived messages.
    from_hot_store = "FROM messages WHERE group_key = ? AND sequence_num > ?"
    if not bytes_too:
        messages = connection.execute(f"SELECT count(*) {from_hot_store}", tuple(group)).fetchone()[0]
        return StorageUsage(messages + archived, 0)
    messages, size = connection.execute(
        f"SELECT count(*), ifnull(sum(size), 0) {from_hot_store}", tuple(group)
    ).fetchone()
    pending_bytes = _invite_bytes(connection, "group_key = ?", group["group_key"]) + _body_bytes(
        connection, "SELECT welcome_body FROM welcomes WHERE group_key = ?", group["group_key"]
    )
    return StorageUsage(messages + archived, size + archived_bytes + pending_bytes)


def of_user(connection: sqlite3.Connection, user_id: bytes) -> StorageUsage:
    """Return a user's usage: application messages in the hot store, and pending invites by the user.

    Archived messages are not counted: the index does not have their senders.
    """
    messages, size = usage_of_sender(connection, user_id)
    return StorageUsage(messages, size + _invite_bytes(connection, "inviter_id = ?", user_id))


def _invite_bytes(connection: sqlite3.Connection, condition: str, value: bytes | int) -> int:
    """Return the bytes of pending invites."""
    return _body_bytes(
        connection, f"SELECT commit_body, welcome_body, group_info_body FROM invites WHERE {condition}", value
    )


def _body_bytes(connection: sqlite3.Connection, query: str, value: bytes | int) -> int:
    ids = [body for row in connection.execute(query, (value,)) for body in row]
    return sum(bodies.sizes(connection, ids))


def hot_bytes(connection: sqlite3.Connection, group_key: int) -> int:
    """Return the bytes of a group's bodies in the hot store."""
    row = connection.execute("SELECT ifnull(sum(size), 0) FROM messages WHERE group_key = ?", (group_key,)).fetchone()
    return int(row[0])


def groups_of_admin(connection: sqlite3.Connection, user_id: bytes) -> int:
    """Return the number of groups in which a user is an admin."""
    cursor = connection.execute("SELECT count(*) FROM members WHERE user_id = ? AND role = 'admin'", (user_id,))
    return int(cursor.fetchone()[0])
