"""A database connection with the state of its transaction, such as its news and the room left for bodies."""

import math
import sqlite3
from typing import TYPE_CHECKING, Any

from conclave.events import News
from conclave.retention.policy import FormerPolicies

if TYPE_CHECKING:
    from conclave.keys.store import KeyStore


class StoreConnection(sqlite3.Connection):
    """A connection to the hot store, with the state of the current transaction.

    ``announced``: the news to publish when the transaction ends. ``room``: how many bytes of bodies it may still add.
    ``pages_to_return``: how many free pages to return to the file system when it ends. ``is_on_event_loop``: whether
    it runs on the event loop's thread, which must not be blocked for long. ``waits_until``: the deadline for waits for
    the write lock, in seconds of the monotonic clock; another thread may set it. ``keys``: the keys of the bodies; None
    if no body is stored or read. ``former_policies``: additional policies by which the server hides messages; empty in
    other processes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Open the connection, see sqlite3.Connection."""
        super().__init__(*args, **kwargs)
        self.announced: list[News] = []
        self.room = math.inf
        self.pages_to_return = 0
        self.is_on_event_loop = False
        self.waits_until = math.inf
        self.keys: KeyStore | None = None
        self.former_policies = FormerPolicies()


def of_store(connection: sqlite3.Connection) -> StoreConnection:
    """Return ``connection`` with its actual type. All connections of the store have it."""
    assert isinstance(connection, StoreConnection)  # noqa: S101 - see ``sqlite.connect``
    return connection
