"""Adds, lists and releases legal holds. ``rules.py`` applies them."""

import sqlite3
from dataclasses import dataclass

from conclave.store.sender_index import SENT

HELD_GROUPS = "SELECT group_key FROM holds WHERE group_key IS NOT NULL"
"""The groups under a legal hold."""

HELD_SENDERS = "SELECT user_id FROM holds WHERE user_id IS NOT NULL"
"""The users whose messages are under a legal hold."""

UNHELD = f"sender_id NOT IN ({HELD_SENDERS})"
"""The SQL condition for messages whose sender is under no legal hold."""


@dataclass(frozen=True)
class Hold:
    """A legal hold on all messages of a group, or on all messages that a user sent.

    ``group_key``: None for a user. ``subject_id``: the id of the group or user. ``name``: its name when the hold was
    added; "" if it was already deleted. ``added_by``: the operator, as in the audit log. ``added_at``: Unix seconds.
    """

    hold_id: int
    group_key: int | None
    subject_id: bytes
    name: str
    reason: str
    added_by: str
    added_at: int

    @property
    def covers(self) -> str:
        """The kind of its subject: "group" or "user"."""
        return "user" if self.group_key is None else "group"


_COLUMNS = "hold_id, group_key, subject_id, name, reason, added_by, added_at"


def add(
    connection: sqlite3.Connection,
    group_key: int | None,
    subject_id: bytes,
    name: str,
    reason: str,
    added_by: str,
    added_at: int,
) -> int:
    """Add a hold and return its id. Ids are never reused. For the parameters see Hold."""
    cursor = connection.execute(
        "INSERT INTO holds (group_key, user_id, subject_id, name, reason, added_by, added_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (group_key, subject_id if group_key is None else None, subject_id, name, reason, added_by, added_at),
    )
    return cursor.lastrowid or 0


def list_all(connection: sqlite3.Connection) -> list[Hold]:
    """Return all holds in the order in which they were added."""
    return [Hold(*row) for row in connection.execute(f"SELECT {_COLUMNS} FROM holds ORDER BY hold_id")]


def remove(connection: sqlite3.Connection, hold_id: int) -> Hold | None:
    """Remove a hold and return it; None if the id is unknown."""
    row = connection.execute(f"DELETE FROM holds WHERE hold_id = ? RETURNING {_COLUMNS}", (hold_id,)).fetchone()
    return Hold(*row) if row else None


def has_any(connection: sqlite3.Connection) -> bool:
    """Return whether there is any legal hold."""
    return connection.execute("SELECT 1 FROM holds LIMIT 1").fetchone() is not None


def has_held_senders(connection: sqlite3.Connection) -> bool:
    """Return whether any user is under a legal hold."""
    return connection.execute(HELD_SENDERS).fetchone() is not None


def is_held(connection: sqlite3.Connection, group_key: int) -> bool:
    """Return whether a group is under a legal hold."""
    return connection.execute("SELECT 1 FROM holds WHERE group_key = ?", (group_key,)).fetchone() is not None


def group_of(connection: sqlite3.Connection, group_id: bytes) -> tuple[int, str] | None:
    """Return the key and name of a group, or None if it does not exist.

    A deleted group whose messages are not all erased has the name "".
    """
    row = connection.execute(
        "SELECT group_key, group_name FROM groups WHERE group_id = ?1"
        " UNION ALL SELECT group_key, '' FROM tombstones WHERE group_id = ?1",
        (group_id,),
    ).fetchone()
    return (row[0], row[1]) if row else None


def has_left_messages(connection: sqlite3.Connection, user_id: bytes) -> bool | None:
    """Return whether messages of a deleted account are stored; None if that requires reading the archive."""
    found = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM user_tombstones WHERE user_id = ?1)"
        " OR EXISTS (SELECT 1 FROM archive_senders WHERE sender_id = ?1)"
        f" OR EXISTS (SELECT 1 FROM {SENT} WHERE sender_id = ?1)",
        (user_id,),
    ).fetchone()[0]
    if found:
        return True
    # The index of the archive has no senders of commits.
    return None if connection.execute("SELECT EXISTS (SELECT 1 FROM archive_parts)").fetchone()[0] else False
