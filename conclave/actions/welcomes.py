"""Welcomes: new members fetch them, and then delete them."""

import sqlite3

from conclave.errors import NotFoundError
from conclave.store.resources import welcomes
from conclave.store.resources.welcomes import of_user as list_own

__all__ = ["accept", "list_own"]


def accept(connection: sqlite3.Connection, welcome_id: bytes, user_id: bytes) -> None:
    """Erase a welcome that the user has received. Raises NotFoundError, also for another user's welcome."""
    if not welcomes.remove_received(connection, welcome_id, user_id):
        raise NotFoundError("no such welcome")
