"""Sessions: who a token belongs to, and until when."""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import uuid4

from conclave.budget import Share
from conclave.clock import Clock
from conclave.errors import CredentialsWrongError, NotFoundError
from conclave.store.news import end_streams


@dataclass(frozen=True)
class Session:
    """A stored session. ``last_used_at`` may lag behind: see auth/activity.py."""

    session_id: int
    public_id: bytes
    user_id: bytes
    created_at: int
    last_used_at: int
    expires_at: int


_COLUMNS = "session_id, public_id, user_id, created_at, last_used_at, expires_at"


def add(
    connection: sqlite3.Connection, user_id: bytes, password_hash: str, token_hash: bytes, now: int, ttl: int
) -> None:
    """Store a new session of ``ttl`` seconds for who has shown the password behind ``password_hash``.

    Raises CredentialsWrongError if that is not the user's any more: a change of password ends all sessions, also
    those that were about to begin.
    """
    stored = connection.execute(
        "INSERT INTO sessions (public_id, token_hash, user_id, created_at, last_used_at, expires_at)"
        " SELECT ?, ?, user_id, ?, ?, ? FROM users WHERE user_id = ? AND password_hash = ? AND NOT disabled",
        (uuid4().bytes, token_hash, now, now, now + ttl, user_id, password_hash),
    )
    if not stored.rowcount:
        raise CredentialsWrongError


def by_token_hash(connection: sqlite3.Connection, token_hash: bytes) -> Session | None:
    """Find a session, expired or not; None if there is none."""
    row = connection.execute(f"SELECT {_COLUMNS} FROM sessions WHERE token_hash = ?", (token_hash,)).fetchone()
    return Session(**row) if row else None


def exists(connection: sqlite3.Connection, session_id: int) -> bool:
    """Tell whether a session has not been ended."""
    return connection.execute("SELECT 1 FROM sessions WHERE session_id = ?", (session_id,)).fetchone() is not None


def of_user(connection: sqlite3.Connection, user_id: bytes, share: Share) -> list[Session]:
    """List a user's sessions, expired ones too, the newest first. Raises NoRoomError."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM sessions WHERE user_id = ? ORDER BY session_id DESC", (user_id,))
    return [Session(**row) for row in share.count(rows)]


def extend(connection: sqlite3.Connection, last_used: Mapping[int, int], ttl: int, clock: Clock) -> None:
    """Write when sessions were last used: session id to Unix second.

    None later than now: what a clock noted that was fast is not brought back again after it was set right.
    """
    now = clock.now()
    connection.executemany(
        "UPDATE sessions SET last_used_at = max(last_used_at, ?), expires_at = max(expires_at, ?) WHERE session_id = ?",
        [(min(used, now), min(used, now) + ttl, session_id) for session_id, used in last_used.items()],
    )


def remove(connection: sqlite3.Connection, user_id: bytes, session_id: int) -> None:
    """End a session of the user, and its streams."""
    connection.execute("DELETE FROM sessions WHERE session_id = ?", (session_id,))
    end_streams(connection, user_id, session_id)


def revoke(connection: sqlite3.Connection, user_id: bytes, public_id: bytes) -> None:
    """End one of a user's sessions by its public id. Raises NotFoundError, also for somebody else's."""
    row = connection.execute(
        "SELECT session_id FROM sessions WHERE public_id = ? AND user_id = ?", (public_id, user_id)
    ).fetchone()
    if row is None:
        raise NotFoundError("no such session")
    remove(connection, user_id, row["session_id"])


def remove_all(connection: sqlite3.Connection, user_id: bytes) -> None:
    """End every session of a user, and their streams.

    Each is named: where the news comes a second late, by the outbox, a session that began since goes on.
    """
    ended = connection.execute("DELETE FROM sessions WHERE user_id = ? RETURNING session_id", (user_id,)).fetchall()
    for (session_id,) in ended:
        end_streams(connection, user_id, session_id)
