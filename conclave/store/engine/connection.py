"""A database connection that also carries the news of its transaction and the room left for bodies."""

import math
import sqlite3
from typing import TYPE_CHECKING, Any

from conclave.events import News
from conclave.retention.policy import FormerPolicies

if TYPE_CHECKING:
    from conclave.keys.store import KeyStore


class StoreConnection(sqlite3.Connection):
    """A connection to the hot store, with the state of the transaction under way.

    ``announced``: the news that the transaction hands on when it ends. ``room``: how many bytes of bodies it may
    still add. ``pages_to_return``: how many free pages go back to the file system when it ends.
    ``is_on_event_loop``: whether it runs on the loop's thread, so that nothing may take long. ``waits_until``: no
    wait for the write lock goes on after that, in seconds of the monotonic clock. Another thread may set it.
    ``keys``: those of the bodies; None where none is stored or read. ``former_policies``: what the server hides
    besides what its store says; none of another process.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Open as sqlite3.Connection does."""
        super().__init__(*args, **kwargs)
        self.announced: list[News] = []
        self.room = math.inf
        self.pages_to_return = 0
        self.is_on_event_loop = False
        self.waits_until = math.inf
        self.keys: KeyStore | None = None
        self.former_policies = FormerPolicies()


def of_store(connection: sqlite3.Connection) -> StoreConnection:
    """Return ``connection`` with its real type: store functions get no other connections."""
    assert isinstance(connection, StoreConnection)  # noqa: S101 - ``sqlite.connect`` opens no others
    return connection
