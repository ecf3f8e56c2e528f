"""Accounts."""

import sqlite3
from dataclasses import dataclass
from uuid import uuid4

from conclave.errors import ConflictError, NotFoundError


@dataclass(frozen=True)
class User:
    """What any user may learn of another."""

    user_id: bytes
    username: str
    alias: str
    signing_key_fingerprint: str


_COLUMNS = "user_id, username, alias, signing_key_fingerprint"


def add(connection: sqlite3.Connection, username: str, password_hash: str, alias: str, now: int) -> bytes:
    """Create an account and return its id. Raises ConflictError if the name is taken."""
    require_free(connection, username)
    user_id = uuid4().bytes
    connection.execute(
        "INSERT INTO users (user_id, username, password_hash, alias, created_at) VALUES (?, ?, ?, ?, ?)",
        (user_id, username, password_hash, alias, now),
    )
    return user_id


def require_free(connection: sqlite3.Connection, username: str) -> None:
    """Raise ConflictError if the name is taken."""
    if connection.execute("SELECT 1 FROM users WHERE username = ?", (username,)).fetchone():
        raise ConflictError("this username is taken")


def by_name(connection: sqlite3.Connection, username: str) -> User:
    """Find an account by its name. Raises NotFoundError."""
    return _found(connection.execute(f"SELECT {_COLUMNS} FROM users WHERE username = ?", (username,)).fetchone())


def by_id(connection: sqlite3.Connection, user_id: bytes) -> User:
    """Find an account by its id. Raises NotFoundError."""
    return _found(connection.execute(f"SELECT {_COLUMNS} FROM users WHERE user_id = ?", (user_id,)).fetchone())


def credentials(connection: sqlite3.Connection, username: str) -> tuple[bytes, str] | None:
    """Return id and password hash of an account, None if there is none."""
    row = connection.execute("SELECT user_id, password_hash FROM users WHERE username = ?", (username,)).fetchone()
    return (row["user_id"], row["password_hash"]) if row else None


def _found(row: sqlite3.Row | None) -> User:
    if row is None:
        raise NotFoundError("no such user")
    return User(**row)
