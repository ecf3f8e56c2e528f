"""A connection to the hot store, which knows two things of the transaction that is under way on it."""

import math
import sqlite3
from typing import Any

from conclave.events import News


class StoreConnection(sqlite3.Connection):
    """``announced``: what the transaction has to tell. ``room``: the bytes of bodies that it may still add."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Open as sqlite3.Connection does."""
        super().__init__(*args, **kwargs)
        self.announced: list[News] = []
        self.room = math.inf


def of_store(connection: sqlite3.Connection) -> StoreConnection:
    """Return ``connection`` as what it is: store functions are given no others."""
    assert isinstance(connection, StoreConnection)  # noqa: S101 - ``database.connect`` opens no others
    return connection
