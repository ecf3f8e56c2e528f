"""Finds groups and users by the ids and names that operators give, and reads lists a part at a time."""

import sqlite3
from typing import Any
from uuid import UUID

from conclave.actions.context import Action
from conclave.errors import InvalidValueError
from conclave.store.lists import ListPart, NotListedError
from conclave.store.resources import groups, users


def id_of(text: str) -> bytes | None:
    """Return the id that ``text`` is; None if it can only be a name."""
    try:
        found = UUID(text)
    except ValueError:
        return None
    return found.bytes if str(found) == text.lower() else None


GONE = "this is not on the list any more: begin again without `after`"


def read_part(connection: sqlite3.Connection, action: Action[..., ListPart[Any]], *args: Any) -> ListPart[Any]:
    """Read a part of a list by an action. Raises InvalidValueError if it begins after what is not on the list.

    Raises also what the action raises.
    """
    try:
        return action(connection, *args)
    except NotListedError as error:
        raise InvalidValueError(f"after: {GONE}", fields={"after": [GONE]}) from error


def group_id(connection: sqlite3.Connection, text: str) -> bytes | None:
    """Return the id of a group. ``text`` is the id, of any group there ever was, or the name that a group has now."""
    if given := id_of(text):
        return given
    found = groups.find_by_name(connection, text)
    return found.group_id if found else None


def user_id(connection: sqlite3.Connection, text: str) -> bytes | None:
    """Return the id of a user, as ``group_id`` does."""
    if given := id_of(text):
        return given
    found = users.find_by_name(connection, text)
    return found.user_id if found else None
