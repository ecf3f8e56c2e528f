"""Bans: users who may not be members of a group."""

import sqlite3
from dataclasses import dataclass

from conclave.store.lists import Listing, ListPart, Span


@dataclass(frozen=True)
class BanRow:
    """A banned user as shown to admins.

    ``banned_at``: Unix seconds. ``banned_by``: a user id; empty if that account was deleted.
    """

    user_id: bytes
    username: str
    alias: str
    banned_at: int
    banned_by: bytes


_OF_GROUP = Listing(
    columns="user_id, username, alias, banned_at, ifnull(banned_by, x'') AS banned_by",
    tables="bans JOIN users USING (user_id)",
    condition="group_key = :group_key",
    key="ban_key",
    id="user_id",
    make=BanRow,
)


def add(connection: sqlite3.Connection, group_key: int, user_id: bytes, banned_by: bytes, now: int) -> None:
    """Ban a user from a group. An existing ban is not changed."""
    connection.execute(
        "INSERT INTO bans (group_key, user_id, banned_by, banned_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (group_key, user_id, banned_by, now),
    )


def remove(connection: sqlite3.Connection, group_key: int, user_id: bytes) -> bool:
    """Lift a ban; return whether there was one."""
    cursor = connection.execute("DELETE FROM bans WHERE group_key = ? AND user_id = ?", (group_key, user_id))
    return cursor.rowcount > 0


def is_banned(connection: sqlite3.Connection, group_key: int, user_id: bytes) -> bool:
    """Return whether the user is banned from the group."""
    cursor = connection.execute("SELECT 1 FROM bans WHERE group_key = ? AND user_id = ?", (group_key, user_id))
    return cursor.fetchone() is not None


def banned(connection: sqlite3.Connection, group_key: int) -> set[bytes]:
    """Return the ids of the users who are banned from a group."""
    return {row[0] for row in connection.execute("SELECT user_id FROM bans WHERE group_key = ?", (group_key,))}


def of_group(connection: sqlite3.Connection, group_key: int, span: Span) -> ListPart[BanRow]:
    """List the banned users of a group, oldest ban first. Raises NotListedError."""
    return _OF_GROUP.read(connection, span, {"group_key": group_key})
