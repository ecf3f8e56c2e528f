"""Finds what an operator names, by id or by name."""

import sqlite3

from conclave.actions.ids import id_of
from conclave.store.resources import groups, users


def group_id(connection: sqlite3.Connection, text: str) -> bytes | None:
    """Return the id of a group. ``text`` is the id, of any group there ever was, or the name that a group has now."""
    if given := id_of(text):
        return given
    found = groups.named(connection, text)
    return found.group_id if found else None


def user_id(connection: sqlite3.Connection, text: str) -> bytes | None:
    """Return the id of a user, as ``group_id`` does."""
    if given := id_of(text):
        return given
    found = users.named(connection, text)
    return found.user_id if found else None
