"""Sessions: the user of each token, and when it expires."""

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from uuid import uuid4

from conclave.clock import Clock
from conclave.retention.policy import end_of
from conclave.store.lists import Listing, ListPart, Span

T = TypeVar("T")


@dataclass(frozen=True)
class SessionRow:
    """A stored session. Times are Unix seconds. ``last_used_at`` may lag, see auth/tokens.py."""

    session_id: int
    public_id: bytes
    user_id: bytes
    created_at: int
    last_used_at: int
    expires_at: int


_COLUMNS = "session_id, public_id, user_id, created_at, last_used_at, expires_at"

_OF_USER = Listing(
    columns=_COLUMNS,
    tables="sessions",
    condition="user_id = :user_id",
    key="session_id",
    id="public_id",
    make=SessionRow,
    descending=True,
)


def add(
    connection: sqlite3.Connection, user_id: bytes, password_hash: str, token_hash: bytes, now: int, ttl: int
) -> bool:
    """Store a new session of ``ttl`` seconds for a user whose password matched ``password_hash``.

    Returns False, without storing it, if the hash has changed since, or the account is disabled or deleted: a
    change of the password also prevents sessions that are about to begin.
    """
    cursor = connection.execute(
        "INSERT INTO sessions (public_id, token_hash, user_id, created_at, last_used_at, expires_at)"
        " SELECT ?, ?, user_id, ?, ?, ? FROM users WHERE user_id = ? AND password_hash = ? AND NOT disabled",
        (uuid4().bytes, token_hash, now, now, end_of(now, ttl), user_id, password_hash),
    )
    return cursor.rowcount > 0


def by_token_hash(connection: sqlite3.Connection, token_hash: bytes) -> SessionRow | None:
    """Find a session, even an expired one; None if there is none."""
    row = connection.execute(f"SELECT {_COLUMNS} FROM sessions WHERE token_hash = ?", (token_hash,)).fetchone()
    return SessionRow(**row) if row else None


def exists(connection: sqlite3.Connection, session_id: int) -> bool:
    """Return whether a session is stored."""
    return connection.execute("SELECT 1 FROM sessions WHERE session_id = ?", (session_id,)).fetchone() is not None


def of_user(
    connection: sqlite3.Connection, user_id: bytes, shown: Callable[[SessionRow], T | None], span: Span
) -> ListPart[T]:
    """List a user's sessions, newest first, converted by ``shown``, which returns None to omit an expired one.

    Raises NotListedError.
    """
    return _OF_USER.read(connection, span, {"user_id": user_id}, shown)


def extend(connection: sqlite3.Connection, last_used: Mapping[int, int], ttl: int, clock: Clock) -> None:
    """Store the last use of sessions, and extend them to ``ttl`` seconds after it.

    ``last_used``: Unix seconds by session id. Future times count as now: otherwise times by a fast clock would be
    stored again after the clock was corrected.
    """
    now = clock.now()
    connection.executemany(
        "UPDATE sessions SET last_used_at = max(last_used_at, ?), expires_at = max(expires_at, ?) WHERE session_id = ?",
        [(min(used_at, now), end_of(min(used_at, now), ttl), session_id) for session_id, used_at in last_used.items()],
    )


def find(connection: sqlite3.Connection, user_id: bytes, public_id: bytes) -> int | None:
    """Return the id of a user's session, given its public id; None if the user does not have it."""
    row = connection.execute(
        "SELECT session_id FROM sessions WHERE public_id = ? AND user_id = ?", (public_id, user_id)
    ).fetchone()
    return row["session_id"] if row else None


def remove(connection: sqlite3.Connection, session_id: int) -> None:
    """End a session."""
    connection.execute("DELETE FROM sessions WHERE session_id = ?", (session_id,))


def remove_all(connection: sqlite3.Connection, user_id: bytes) -> list[int]:
    """End all sessions of a user; return their ids."""
    rows = connection.execute("DELETE FROM sessions WHERE user_id = ? RETURNING session_id", (user_id,))
    return [row[0] for row in rows.fetchall()]
