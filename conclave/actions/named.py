"""Finds what an operator names, by id or by name.

An id is written with hyphens, which no name has. So an id can only mean one thing. 32 hexadecimal digits without
hyphens may be the name of a group, which its admins choose.
"""

import sqlite3
from uuid import UUID

from conclave.errors import NotFoundError
from conclave.store import groups, users


def id_of(text: str) -> bytes | None:
    """Return the id that ``text`` is; None if it can only be a name."""
    try:
        found = UUID(text)
    except ValueError:
        return None
    return found.bytes if str(found) == text.lower() else None


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
