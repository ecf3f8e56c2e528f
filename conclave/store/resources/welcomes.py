"""Welcomes: bodies of accepted invites, kept until the new member has fetched them."""

import sqlite3
from dataclasses import dataclass, replace
from uuid import uuid4

from conclave.store import bodies
from conclave.store.lists import Listing, ListPart, Span


@dataclass(frozen=True)
class PendingWelcome:
    """A welcome as shown to its user."""

    group_id: bytes
    group_alias: str
    welcome_message: bytes
    welcome_id: bytes


@dataclass(frozen=True)
class LongWelcome:
    """A welcome, without its body, whose body exceeds the size of a part. ``size``: of the body, in bytes."""

    welcome: PendingWelcome
    welcome_key: int
    size: int


@dataclass(frozen=True)
class _StoredWelcome:
    """A welcome, and the id of its body."""

    welcome: PendingWelcome
    welcome_key: int
    welcome_body: int


_OF_USER = Listing(
    columns="welcome_key, group_id, alias, welcome_id, welcome_body",
    tables="welcomes JOIN groups USING (group_key)",
    condition="user_id = :user_id",
    key="welcome_key",
    id="welcome_id",
    make=lambda welcome_key, group_id, alias, welcome_id, welcome_body: _StoredWelcome(
        PendingWelcome(group_id, alias, b"", welcome_id), welcome_key, welcome_body
    ),
)


def add(connection: sqlite3.Connection, group_key: int, user_id: bytes, body_id: int) -> None:
    """Add a welcome for the user, with the stored body ``body_id``."""
    connection.execute(
        "INSERT INTO welcomes (welcome_id, user_id, group_key, welcome_body) VALUES (?, ?, ?, ?)",
        (uuid4().bytes, user_id, group_key, body_id),
    )


def of_user(connection: sqlite3.Connection, user_id: bytes, span: Span) -> ListPart[PendingWelcome]:
    """List a user's welcomes, oldest first.

    ``ListPart.long`` is a LongWelcome. Raises NotListedError.
    """
    part = _OF_USER.read(connection, span, {"user_id": user_id})
    ids = [each.welcome_body for each in part.items]
    sizes = bodies.sizes(connection, ids)
    total, count = part.size, 0
    for size in sizes:
        if count and total + size > span.size:
            break
        total, count = total + size, count + 1
    last, is_end = (part.items[count - 1].welcome_key if count else part.last), part.is_end and count == len(ids)
    if count == 1 and sizes[0] > span.size:
        first = part.items[0]
        return ListPart([], last, is_end, long=LongWelcome(first.welcome, first.welcome_key, sizes[0]))
    body_by_id = bodies.get_many(connection, ids[:count])
    items = [replace(each.welcome, welcome_message=body_by_id[each.welcome_body]) for each in part.items[:count]]
    return ListPart(items, last, is_end, total)


def piece_of_body(connection: sqlite3.Connection, welcome: LongWelcome, user_id: bytes, begin: int, size: int) -> bytes:
    """Return ``size`` bytes of a welcome's body, fewer at its end; b"" if the user no longer has it."""
    row = connection.execute(
        "SELECT welcome_body FROM welcomes WHERE welcome_key = ? AND user_id = ?", (welcome.welcome_key, user_id)
    ).fetchone()
    return bodies.get(connection, row["welcome_body"])[begin : begin + size] if row else b""


def remove_received(connection: sqlite3.Connection, welcome_id: bytes, user_id: bytes) -> bool:
    """Erase a welcome that its user has received; return whether the user had it."""
    row = connection.execute(
        "DELETE FROM welcomes WHERE welcome_id = ? AND user_id = ? RETURNING welcome_body", (welcome_id, user_id)
    ).fetchone()
    if row:
        bodies.erase(connection, [row["welcome_body"]])
    return row is not None


def remove(connection: sqlite3.Connection, group_key: int, user_id: bytes) -> None:
    """Erase a user's welcomes to a group that the user has left, since they contain the group's keys."""
    rows = connection.execute(
        "DELETE FROM welcomes WHERE user_id = ? AND group_key = ? RETURNING welcome_body", (user_id, group_key)
    ).fetchall()
    bodies.erase(connection, [row["welcome_body"] for row in rows])
