"""Reading lists a part at a time."""

import sqlite3
from typing import Any

from conclave.actions.context import Action
from conclave.errors import InvalidValueError
from conclave.store.lists import ListPart, NotListedError

GONE = "this is not on the list any more: begin again without `after`"


def read_part(connection: sqlite3.Connection, action: Action[..., ListPart[Any]], *args: Any) -> ListPart[Any]:
    """Read a part of a list by an action. Raises InvalidValueError if it begins after what is not on the list.

    Raises also what the action raises.
    """
    try:
        return action(connection, *args)
    except NotListedError as error:
        raise InvalidValueError(f"after: {GONE}", fields={"after": [GONE]}) from error
