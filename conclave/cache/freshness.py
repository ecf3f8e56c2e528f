"""Makes sure that what is remembered is still so, before it is used.

What makes a cached value wrong is noted in the store, see ``store/invalidation.py``: each change of any process, this
one included. So one look at the store tells everything, and there is no other way to be told.

Requests that are handled in the same pass of the event loop share a look. Each of them had arrived before the look, so
to its client the change and the answer were at the same time.

Sessions are cached here too, so that a request is authenticated without asking the store.
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
        return invalidation.collect(touch, self._read(invalidation.QUERY_AFTER, touch))

    def _read(self, query: str, value: int) -> list[Any]:
        """Run ``query`` in a read of its own. It is short: its pages are in SQLite's memory, or in the system's."""
        try:
            return self._connection.execute(query, (value,)).fetchall()
        except sqlite3.Error as error:
            if not is_disk_error(error):
                raise
            unreadable = store_error(self._path, error)
            self._watch.read(unreadable)
            raise unreadable from error


MAX_SESSIONS = 20_000
"""At most 20,000 sessions are remembered, which takes about 15 MB. The one that was used longest ago goes first."""


class SessionCache:
    """The sessions that were used lately, by the hashes of their tokens. Only for the event loop's thread."""

    def __init__(self, store: Database, freshness: Freshness) -> None:
        """Begin with none. ``freshness`` tells which of them end."""
        self._store = store
        self._freshness = freshness
        self._by_hash: OrderedDict[bytes, SessionRow] = OrderedDict()
        self._hashes: dict[int, bytes] = {}
        self._extensions = 0
        freshness.on_invalidation(self._forget)

    def known(self, token_hash: bytes) -> SessionRow | None:
        """Return the session of a token if it is remembered, even an expired one. Raises StoreError."""
        self._freshness.look()
        found = self._by_hash.get(token_hash)
        if found:
            self._by_hash.move_to_end(token_hash)
        return found

    async def find(self, token_hash: bytes) -> SessionRow | None:
        """Return the session of a token from the store, even an expired one; None if there is none. Remember it.

        Raises StoreError.
        """
        extensions = self._extensions
        touch, session = await self._store.read(invalidation.with_invalidation, sessions.by_token_hash, token_hash)
        if extensions != self._extensions:
            return session  # it may have been extended since it was read, which no touch tells
        if session and not self._freshness.since(touch).covers_session(session.session_id):
            self._remember(token_hash, session)
        return session

    def forget_extended(self, session_ids: Iterable[int]) -> None:
        """Forget sessions that this server has extended, which touches nothing."""
        self._extensions += 1
        self._drop(session_ids)

    def _drop(self, session_ids: Iterable[int]) -> None:
        for session_id in session_ids:
            token_hash = self._hashes.pop(session_id, None)
            if token_hash:
                del self._by_hash[token_hash]

    def _remember(self, token_hash: bytes, session: SessionRow) -> None:
        self._by_hash[token_hash] = session
        self._hashes[session.session_id] = token_hash
        if len(self._by_hash) > MAX_SESSIONS:
            _, oldest = self._by_hash.popitem(last=False)
            del self._hashes[oldest.session_id]

    def _forget(self, touched: Invalidated) -> None:
        if touched.everything:
            self._by_hash.clear()
            self._hashes.clear()
        self._drop(touched.sessions)
