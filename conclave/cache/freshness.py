"""Makes sure that what is remembered is still so, before it is used.

What makes a cached value wrong is noted in the store, see ``store/invalidation.py``: each change of any process,
this one included. So one look at the store tells everything, and there is no other way to be told.

Requests that are handled in the same pass of the event loop share a look. Each of them had arrived before the look, so
to its client the change and the answer were at the same time.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conclave.clock import Clock, Moment
from conclave.store import invalidation
from conclave.store.engine import sqlite
from conclave.store.engine.faults import Watch, is_of_the_disk, store_error
from conclave.store.invalidation import Invalidated


class Freshness:
    """Looks what was touched, once a pass of the event loop. Only for the event loop's thread."""

    def __init__(self, path: Path, clock: Clock, watch: Watch) -> None:
        """Open the store at ``path``, which exists. Raises StoreError. ``watch`` hears how the disk fares."""
        self._path = path
        self._clock = clock
        self._watch = watch
        self._forget: list[Callable[[Invalidated], None]] = []
        self._is_fresh = False
        self._moment = Moment(0, 0)
        self._connection = sqlite.connect(path)
        self._connection.execute("PRAGMA query_only = ON")
        self._touch = invalidation.last_invalidation(self._connection)

    def on_invalidation(self, forget: Callable[[Invalidated], None]) -> None:
        """Have ``forget`` called with what was invalidated, before anything cached is used."""
        self._forget.append(forget)

    def look(self) -> Moment:
        """Have everything forgotten that was touched; return the time to act on, and whether it is in doubt.

        Raises StoreError if the store cannot be read.
        """
        if not self._is_fresh:
            self._moment = self._clock.moment()
            self._catch_up()
            self._is_fresh = True
            asyncio.get_running_loop().call_soon(self.expire)
        return self._moment

    def expire(self) -> None:
        """Have the next request look again."""
        self._is_fresh = False

    def since(self, touch: int) -> Invalidated:
        """Return what was touched after ``touch``, up to now: whether something read as of ``touch`` is still so."""
        return self._after(touch) or Invalidated(touch)

    def last_seq(self, group_key: int) -> int | None:
        """Return the last number that a group has given to a message, as of now; None if the group is gone."""
        rows = self._read("SELECT last_seq FROM groups WHERE group_key = ?", group_key)
        return rows[0][0] if rows else None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _catch_up(self) -> None:
        touched = self._after(self._touch)
        if touched:
            for forget in self._forget:
                forget(touched)
            self._touch = touched.touch

    def _after(self, touch: int) -> Invalidated | None:
        return invalidation.collect(touch, self._read(invalidation.AFTER, touch))

    def _read(self, query: str, value: int) -> list[Any]:
        """Run ``query`` in a read of its own. It is short: its pages are in SQLite's memory, or in the system's."""
        try:
            return self._connection.execute(query, (value,)).fetchall()
        except sqlite3.Error as error:
            if not is_of_the_disk(error):
                raise
            unreadable = store_error(self._path, error)
            self._watch.read(unreadable)
            raise unreadable from error
