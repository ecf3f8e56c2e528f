"""Sessions that are remembered, so that a request is authenticated without asking the store."""

from collections import OrderedDict
from collections.abc import Iterable

from conclave.cache.freshness import Freshness
from conclave.store import invalidation
from conclave.store.engine.database import Database
from conclave.store.invalidation import Invalidated
from conclave.store.resources import sessions
from conclave.store.resources.sessions import Session

MOST_SESSIONS = 20_000
"""At most 20,000 sessions are remembered, which takes about 15 MB. The one that was used longest ago goes first."""


class RememberedSessions:
    """The sessions that were used lately, by the hashes of their tokens. Only for the event loop's thread."""

    def __init__(self, store: Database, freshness: Freshness) -> None:
        """Begin with none. ``freshness`` tells which of them end."""
        self._store = store
        self._freshness = freshness
        self._by_hash: OrderedDict[bytes, Session] = OrderedDict()
        self._hashes: dict[int, bytes] = {}
        self._extensions = 0
        freshness.on_invalidation(self._forget)

    def known(self, token_hash: bytes) -> Session | None:
        """Return the session of a token if it is remembered, even an expired one. Raises StoreError."""
        self._freshness.look()
        found = self._by_hash.get(token_hash)
        if found:
            self._by_hash.move_to_end(token_hash)
        return found

    async def find(self, token_hash: bytes) -> Session | None:
        """Return the session of a token from the store, even an expired one; None if there is none. Remember it.

        Raises StoreError.
        """
        extensions = self._extensions
        touch, session = await self._store.read(invalidation.with_invalidation, sessions.by_token_hash, token_hash)
        if extensions != self._extensions:
            return session  # it may have been extended since it was read, which no touch tells
        if session and not self._freshness.since(touch).reaches_session(session.session_id):
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

    def _remember(self, token_hash: bytes, session: Session) -> None:
        self._by_hash[token_hash] = session
        self._hashes[session.session_id] = token_hash
        if len(self._by_hash) > MOST_SESSIONS:
            _, oldest = self._by_hash.popitem(last=False)
            del self._hashes[oldest.session_id]

    def _forget(self, touched: Invalidated) -> None:
        if touched.everything:
            self._by_hash.clear()
            self._hashes.clear()
        self._drop(touched.sessions)
