"""Sessions: who a token belongs to, and until when."""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Session:
    """A stored session. ``last_used_at`` may lag behind: see auth.SessionActivity."""

    session_id: int
    user_id: bytes
    last_used_at: int
    expires_at: int


def add(connection: sqlite3.Connection, user_id: bytes, token_hash: bytes, now: int, ttl: int) -> None:
    """Store a new session of ``ttl`` seconds."""
    connection.execute(
        "INSERT INTO sessions (token_hash, user_id, created_at, last_used_at, expires_at) VALUES (?, ?, ?, ?, ?)",
        (token_hash, user_id, now, now, now + ttl),
    )


def by_token_hash(connection: sqlite3.Connection, token_hash: bytes) -> Session | None:
    """Find a session, expired or not; None if there is none."""
    row = connection.execute(
        "SELECT session_id, user_id, last_used_at, expires_at FROM sessions WHERE token_hash = ?", (token_hash,)
    ).fetchone()
    return Session(**row) if row else None


def extend(connection: sqlite3.Connection, last_used: Mapping[int, int], ttl: int) -> None:
    """Write when sessions were last used: session id to Unix second."""
    connection.executemany(
        "UPDATE sessions SET last_used_at = max(last_used_at, ?), expires_at = max(expires_at, ?) WHERE session_id = ?",
        [(used, used + ttl, session_id) for session_id, used in last_used.items()],
    )


def remove(connection: sqlite3.Connection, session_id: int) -> None:
    """End a session."""
    connection.execute("DELETE FROM sessions WHERE session_id = ?", (session_id,))
