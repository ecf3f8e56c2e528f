"""Finds groups and users by id or name, and reads parts of lists."""

import sqlite3
from typing import Any
from uuid import UUID

from conclave.actions.context import Action
from conclave.errors import InvalidValueError
from conclave.store.lists import ListPart, NotListedError
from conclave.store.resources import groups, users


def id_of(text: str) -> bytes | None:
    """Parse an id; return None if ``text`` can only be a name."""
    try:
        parsed = UUID(text)
    except ValueError:
        return None
    return parsed.bytes if str(parsed) == text.lower() else None


NOT_LISTED = "this is no longer on the list: begin again without `after`"


def read_part(connection: sqlite3.Connection, action: Action[..., ListPart[Any]], *args: Any) -> ListPart[Any]:
    """Read a part of a list by ``action``.

    Raises InvalidValueError if the element before the part is not on the list, and the errors of the action.
    """
    try:
        return action(connection, *args)
    except NotListedError as error:
        raise InvalidValueError(f"after: {NOT_LISTED}", fields={"after": [NOT_LISTED]}) from error


def group_id(connection: sqlite3.Connection, text: str) -> bytes | None:
    """Return the id of a group. ``text``: the id of any current or former group, or the name of a current one."""
    if parsed := id_of(text):
        return parsed
    found = groups.find_by_name(connection, text)
    return found.group_id if found else None


def user_id(connection: sqlite3.Connection, text: str) -> bytes | None:
    """Return the id of a user. ``text``: the id of any current or former user, or the name of a current one."""
    if parsed := id_of(text):
        return parsed
    found = users.find_by_name(connection, text)
    return found.user_id if found else None
