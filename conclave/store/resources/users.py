"""Users: create and find accounts, read names and credentials."""

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from uuid import uuid4

from conclave.store.engine.sqlite import placeholders


@dataclass(frozen=True)
class UserRow:
    """A user as shown to other users."""

    user_id: bytes
    username: str
    alias: str
    signing_key_fingerprint: str


ID_BYTES = 16
"""The ids of users and groups have 16 bytes."""

_COLUMNS = "user_id, username, alias, signing_key_fingerprint"


def add(connection: sqlite3.Connection, username: str, password_hash: str, alias: str, now: int) -> bytes:
    """Create an account and return its id. The name must be free."""
    user_id = uuid4().bytes
    connection.execute(
        "INSERT INTO users (user_id, username, password_hash, alias, created_at) VALUES (?, ?, ?, ?, ?)",
        (user_id, username, password_hash, alias, now),
    )
    return user_id


def is_taken(connection: sqlite3.Connection, username: str) -> bool:
    """Return whether an account has the name."""
    return connection.execute("SELECT 1 FROM users WHERE username = ?", (username,)).fetchone() is not None


def find_by_name(connection: sqlite3.Connection, username: str) -> UserRow | None:
    """Find an account by its name."""
    return _user_row(connection.execute(f"SELECT {_COLUMNS} FROM users WHERE username = ?", (username,)).fetchone())


def find(connection: sqlite3.Connection, user_id: bytes) -> UserRow | None:
    """Find an account by its id."""
    return _user_row(connection.execute(f"SELECT {_COLUMNS} FROM users WHERE user_id = ?", (user_id,)).fetchone())


def known(connection: sqlite3.Connection, user_ids: Collection[bytes]) -> set[bytes]:
    """Return the ``user_ids`` (at most some thousands) that belong to an account."""
    rows = connection.execute(f"SELECT user_id FROM users WHERE user_id IN ({placeholders(user_ids)})", tuple(user_ids))
    return {row["user_id"] for row in rows}


def set_alias(connection: sqlite3.Connection, user_id: bytes, alias: str) -> None:
    """Change an alias; "" clears it."""
    connection.execute("UPDATE users SET alias = ? WHERE user_id = ?", (alias, user_id))


def set_fingerprint(connection: sqlite3.Connection, user_id: bytes, fingerprint: str) -> None:
    """Change the fingerprint of a user's signing key."""
    connection.execute("UPDATE users SET signing_key_fingerprint = ? WHERE user_id = ?", (fingerprint, user_id))


def credentials(connection: sqlite3.Connection, username: str) -> tuple[bytes, str] | None:
    """Return the id and password hash of an account; None if it does not exist or is disabled."""
    row = connection.execute(
        "SELECT user_id, password_hash FROM users WHERE username = ? AND NOT disabled", (username,)
    ).fetchone()
    return (row["user_id"], row["password_hash"]) if row else None


def stored_credentials(connection: sqlite3.Connection, user_id: bytes) -> tuple[str, str] | None:
    """Return the name and password hash of an account, disabled or not; None if it does not exist."""
    row = connection.execute("SELECT username, password_hash FROM users WHERE user_id = ?", (user_id,)).fetchone()
    return (row["username"], row["password_hash"]) if row else None


def is_enabled(connection: sqlite3.Connection, user_id: bytes) -> bool:
    """Return whether the account exists and is not disabled."""
    cursor = connection.execute("SELECT 1 FROM users WHERE user_id = ? AND NOT disabled", (user_id,))
    return cursor.fetchone() is not None


def _user_row(row: sqlite3.Row | None) -> UserRow | None:
    return UserRow(**row) if row else None
