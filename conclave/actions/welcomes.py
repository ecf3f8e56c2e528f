"""Serves welcomes to new members, who fetch and then delete them."""

import sqlite3

from conclave.errors import NotFoundError
from conclave.store.resources import welcomes
from conclave.store.resources.welcomes import LongWelcome, of_user as list_own

__all__ = ["LongWelcome", "accept", "list_own", "piece"]


def piece(connection: sqlite3.Connection, long: LongWelcome, user_id: bytes, begin: int, size: int) -> bytes:
    """Return up to ``size`` bytes of a welcome's body from offset ``begin``. Raises NotFoundError."""
    found = welcomes.piece_of_body(connection, long, user_id, begin, size)
    if not found:
        raise NotFoundError("no such welcome")
    return found


def accept(connection: sqlite3.Connection, welcome_id: bytes, user_id: bytes) -> None:
    """Erase a received welcome. Raises NotFoundError, even for another user's welcome."""
    if not welcomes.remove_received(connection, welcome_id, user_id):
        raise NotFoundError("no such welcome")
