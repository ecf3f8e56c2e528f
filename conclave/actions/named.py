"""Finds what an operator names, by id or by name."""

import sqlite3

from conclave.errors import NotFoundError
from conclave.ids import id_of
from conclave.store import groups, users


def group_id(connection: sqlite3.Connection, text: str) -> bytes | None:
    """Return the id of a group. ``text`` is the id, of any group there ever was, or the name that a group has now."""
    try:
        return id_of(text) or groups.by_name(connection, text).group_id
    except NotFoundError:
        return None


def user_id(connection: sqlite3.Connection, text: str) -> bytes | None:
    """Return the id of a user, as ``group_id`` does."""
    try:
        return id_of(text) or users.by_name(connection, text).user_id
    except NotFoundError:
        return None
