"""Finds accounts, and checks that they exist."""

import sqlite3

from conclave.errors import ConflictError, NotFoundError, TokenExpiredError
from conclave.store.resources import users
from conclave.store.resources.users import UserRow


def by_name(connection: sqlite3.Connection, username: str) -> UserRow:
    """Find an account by its name. Raises NotFoundError."""
    return _required(users.find_by_name(connection, username))


def by_id(connection: sqlite3.Connection, user_id: bytes) -> UserRow:
    """Find an account by its id. Raises NotFoundError."""
    return _required(users.find(connection, user_id))


def me(connection: sqlite3.Connection, user_id: bytes) -> UserRow:
    """Return the caller's account. Raises TokenExpiredError if the account is gone."""
    found = users.find(connection, user_id)
    if found is None:
        raise TokenExpiredError
    return found


def require(connection: sqlite3.Connection, user_id: bytes) -> None:
    """Raise TokenExpiredError if the caller's account was deleted after the request was authenticated."""
    me(connection, user_id)


def require_enabled(connection: sqlite3.Connection, user_id: bytes) -> None:
    """Raise TokenExpiredError if the caller's account was deleted or disabled after the request was authenticated."""
    if not users.is_enabled(connection, user_id):
        raise TokenExpiredError


def require_free(connection: sqlite3.Connection, username: str) -> None:
    """Raise ConflictError if the name is taken."""
    if users.is_taken(connection, username):
        raise ConflictError("this username is taken")


def _required(found: UserRow | None) -> UserRow:
    if found is None:
        raise NotFoundError("no such user")
    return found
