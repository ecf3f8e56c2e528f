"""Welcomes: bodies from accepted invites that wait until the new member fetches them."""

import sqlite3
from dataclasses import dataclass
from uuid import uuid4

from conclave.response_memory import Share
from conclave.store import bodies

LIST_BYTES = 32 * 1024 * 1024
"""A list has at most 32 MiB of bodies; the rest is listed once these were accepted."""


@dataclass(frozen=True)
class PendingWelcome:
    """A welcome as its user sees it."""

    group_id: bytes
    group_alias: str
    welcome_message: bytes
    welcome_id: bytes


def add(connection: sqlite3.Connection, group_key: int, user_id: bytes, body_id: int) -> None:
    """Keep the stored body ``body_id`` as a welcome for the user."""
    connection.execute(
        "INSERT INTO welcomes (welcome_id, user_id, group_key, welcome_body) VALUES (?, ?, ?, ?)",
        (uuid4().bytes, user_id, group_key, body_id),
    )


def of_user(connection: sqlite3.Connection, user_id: bytes, share: Share) -> list[PendingWelcome]:
    """List a user's welcomes, the oldest first, up to LIST_BYTES of bodies, but at least one.

    Fewer if memory is short. Raises NoRoomError.
    """
    rows = connection.execute(
        "SELECT group_id, alias, welcome_id, welcome_body FROM welcomes JOIN groups USING (group_key)"
        " WHERE user_id = ? ORDER BY welcome_key",
        (user_id,),
    ).fetchall()
    ids = [row["welcome_body"] for row in rows]
    count = share.take_bodies(bodies.sizes(connection, ids), LIST_BYTES)
    found = bodies.get_many(connection, ids[:count])
    return [
        PendingWelcome(row["group_id"], row["alias"], found[row["welcome_body"]], row["welcome_id"])
        for row in rows[:count]
    ]


def remove_received(connection: sqlite3.Connection, welcome_id: bytes, user_id: bytes) -> bool:
    """Erase a welcome that its user has received; tell whether the user had it."""
    row = connection.execute(
        "DELETE FROM welcomes WHERE welcome_id = ? AND user_id = ? RETURNING welcome_body", (welcome_id, user_id)
    ).fetchone()
    if row:
        bodies.discard(connection, [row["welcome_body"]])
    return row is not None


def remove(connection: sqlite3.Connection, group_key: int, user_id: bytes) -> None:
    """Erase the welcomes to a group that the user has left: they hold keys that the user must no longer get."""
    rows = connection.execute(
        "DELETE FROM welcomes WHERE user_id = ? AND group_key = ? RETURNING welcome_body", (user_id, group_key)
    ).fetchall()
    bodies.discard(connection, [row["welcome_body"] for row in rows])
