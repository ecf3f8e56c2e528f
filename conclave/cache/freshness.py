"""Invalidates cached values before they are used, and caches sessions.

Each change, of any process, that makes a cached value wrong adds an invalidation to the store, see
``store/invalidation.py``. So one check of the store finds all of them. Requests in the same pass of the event loop
share a check: each arrived before it, so its client cannot tell whether the change or the response came first.
"""

import asyncio
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from conclave.clock import Clock, Moment
from conclave.store import invalidation
from conclave.store.engine import sqlite
from conclave.store.engine.database import Database
from conclave.store.engine.faults import Watch, is_disk_error, store_error
from conclave.store.invalidation import Invalidated
from conclave.store.resources import sessions
from conclave.store.resources.sessions import SessionRow


class Freshness:
    """Checks for invalidations, once in each pass of the event loop. Only for the event loop's thread."""

    def __init__(self, path: Path, clock: Clock, watch: Watch) -> None:
        """Open the existing store at ``path``. Raises StoreError. ``watch``: read errors are reported to it."""
        self._path = path
        self._clock = clock
        self._watch = watch
        self._callbacks: list[Callable[[Invalidated], None]] = []
        self._is_fresh = False
        self._moment = Moment(0, 0)
        self._connection = sqlite.connect(path)
        self._connection.execute("PRAGMA query_only = ON")
        self._touch = invalidation.last_invalidation(self._connection)

    def on_invalidation(self, forget: Callable[[Invalidated], None]) -> None:
        """Register a callback for invalidations. It is called before cached values are used."""
        self._callbacks.append(forget)

    def refresh(self) -> Moment:
        """Process new invalidations; return the current time, and whether it is in doubt.

        Raises StoreError if the store cannot be read.
        """
        if not self._is_fresh:
            self._moment = self._clock.moment()
            self._catch_up()
            self._is_fresh = True
            asyncio.get_running_loop().call_soon(self.expire)
        return self._moment

    def expire(self) -> None:
        """Make the next request check again."""
        self._is_fresh = False

    def since(self, touch: int) -> Invalidated:
        """Return the invalidations after ``touch``: they show whether a value read at ``touch`` is still current."""
        return self._after(touch) or Invalidated(touch)

    def last_seq(self, group_key: int) -> int | None:
        """Return a group's current last message number; None if the group is deleted."""
        rows = self._read("SELECT last_seq FROM groups WHERE group_key = ?", group_key)
        return rows[0][0] if rows else None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _catch_up(self) -> None:
        changes = self._after(self._touch)
        if changes:
            for forget in self._callbacks:
                forget(changes)
            self._touch = changes.touch

    def _after(self, touch: int) -> Invalidated | None:
        return invalidation.collect(touch, self._read(invalidation.QUERY_AFTER, touch))

    def _read(self, query: str, value: int) -> list[Any]:
        """Run a short ``query`` on the event loop, in a separate read."""
        try:
            return self._connection.execute(query, (value,)).fetchall()
        except sqlite3.Error as error:
            if not is_disk_error(error):
                raise
            read_error = store_error(self._path, error)
            self._watch.read(read_error)
            raise read_error from error


MAX_SESSIONS = 20_000
"""The most cached sessions, in about 15 MB. The least recently used is dropped first."""


class SessionCache:
    """A cache of sessions by the hashes of their tokens. Only for the event loop's thread."""

    def __init__(self, store: Database, freshness: Freshness) -> None:
        """``freshness``: reports invalid sessions."""
        self._store = store
        self._freshness = freshness
        self._by_hash: OrderedDict[bytes, SessionRow] = OrderedDict()
        self._hashes: dict[int, bytes] = {}
        self._extensions = 0
        freshness.on_invalidation(self._forget)

    def get(self, token_hash: bytes) -> SessionRow | None:
        """Return the session of a token if it is cached, even an expired one. Raises StoreError."""
        self._freshness.refresh()
        found = self._by_hash.get(token_hash)
        if found:
            self._by_hash.move_to_end(token_hash)
        return found

    async def load(self, token_hash: bytes) -> SessionRow | None:
        """Read the session of a token, even an expired one, from the store, and cache it. Raises StoreError."""
        extensions = self._extensions
        touch, session = await self._store.read(invalidation.with_invalidation, sessions.by_token_hash, token_hash)
        if extensions != self._extensions:
            return session  # it may have been extended during the read, which is no invalidation
        if session and not self._freshness.since(touch).covers_session(session.session_id):
            self._add(token_hash, session)
        return session

    def drop_extended(self, session_ids: Iterable[int]) -> None:
        """Drop sessions that this server has extended, which is no invalidation."""
        self._extensions += 1
        self._drop(session_ids)

    def _drop(self, session_ids: Iterable[int]) -> None:
        for session_id in session_ids:
            token_hash = self._hashes.pop(session_id, None)
            if token_hash:
                del self._by_hash[token_hash]

    def _add(self, token_hash: bytes, session: SessionRow) -> None:
        self._by_hash[token_hash] = session
        self._hashes[session.session_id] = token_hash
        if len(self._by_hash) > MAX_SESSIONS:
            _, oldest = self._by_hash.popitem(last=False)
            del self._hashes[oldest.session_id]

    def _forget(self, changes: Invalidated) -> None:
        if changes.everything:
            self._by_hash.clear()
            self._hashes.clear()
        self._drop(changes.sessions)
