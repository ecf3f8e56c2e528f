"""How much a group or a user has stored: what quotas go by."""

import sqlite3
from typing import NamedTuple

from conclave.store import bodies
from conclave.store.resources.messages import usage_of_sender


class StorageUsage(NamedTuple):
    """Messages, and the bytes of their bodies and of those that wait with invites."""

    messages: int
    body_bytes: int


def of_group(
    connection: sqlite3.Connection, group_id: bytes, user_id: bytes, *, bytes_too: bool
) -> StorageUsage | None:
    """Count a group's messages, in the hot store and in the archive, for a user who wants to send to it or to join it.

    None if the user can do neither, or there is no such group: how long an answer takes tells outsiders neither that it
    is there nor how much it has. Reads an index entry for each message in the hot store. ``bytes_too``: sum the
    bytes of their bodies as well, and of what waits with invites and as welcomes. Otherwise there are 0 bytes.
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
    # What the archive serves may still be in the hot store too, for a moment.
    hot = "FROM messages WHERE group_key = ? AND sequence_num > ?"
    if not bytes_too:
        messages = connection.execute(f"SELECT count(*) {hot}", tuple(group)).fetchone()[0]
        return StorageUsage(messages + archived, 0)
    messages, size = connection.execute(f"SELECT count(*), ifnull(sum(size), 0) {hot}", tuple(group)).fetchone()
    waiting = _waiting(connection, "group_key = ?", group["group_key"]) + _measure_waiting(
        connection, "SELECT welcome_body FROM welcomes WHERE group_key = ?", group["group_key"]
    )
    return StorageUsage(messages + archived, size + archived_bytes + waiting)


def of_user(connection: sqlite3.Connection, user_id: bytes) -> StorageUsage:
    """Count the application messages of a user in the hot store, and the bytes that wait with the user's invites.

    What the archive has of the messages is not known there.
    """
    messages, size = usage_of_sender(connection, user_id)
    return StorageUsage(messages, size + _waiting(connection, "inviter_id = ?", user_id))


def _waiting(connection: sqlite3.Connection, which: str, value: bytes | int) -> int:
    """Return the bytes of what waits with invites until they are answered: at most one for each user and group."""
    return _measure_waiting(
        connection, f"SELECT commit_body, welcome_body, group_info_body FROM invites WHERE {which}", value
    )


def _measure_waiting(connection: sqlite3.Connection, rows: str, value: bytes | int) -> int:
    ids = [body for row in connection.execute(rows, (value,)) for body in row]
    return sum(bodies.sizes(connection, ids))


def hot_bytes(connection: sqlite3.Connection, group_key: int) -> int:
    """Return how many bytes of bodies the hot store has of a group."""
    row = connection.execute("SELECT ifnull(sum(size), 0) FROM messages WHERE group_key = ?", (group_key,)).fetchone()
    return int(row[0])


def groups_of_admin(connection: sqlite3.Connection, user_id: bytes) -> int:
    """Return in how many groups a user is an admin."""
    found = connection.execute("SELECT count(*) FROM members WHERE user_id = ? AND role = 'admin'", (user_id,))
    return int(found.fetchone()[0])
