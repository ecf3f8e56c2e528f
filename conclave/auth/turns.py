"""Taking turns at what only a few may do at once."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from conclave.errors import UnavailableError

MOST_WAITING, MOST_OF_ONE = 1_000, 500
"""How many wait at most, altogether and of one key."""

RETRY_SECONDS = 5
"""After which one who could not wait may ask again."""


class Turns:
    """Lets ``at_once`` in at a time.

    Those who wait come in by their keys in turn: however many of one key wait, they hold up each other. For the event
    loop only.
    """

    def __init__(self, at_once: int) -> None:
        """Begin with nobody waiting."""
        self._free = at_once
        self._lines: dict[Hashable, deque[asyncio.Future[None]]] = {}
        """Of each key who waits; the key whose turn is next comes first."""
        self.waiting = 0
        """How many wait."""

    @property
    def has_room(self) -> bool:
        """Whether the next who comes does not have to wait."""
        return self._free > 0

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[None]:
        """Wait for a turn, which lasts as long as the block. Raises UnavailableError where too many wait."""
        await self._begin(key)
        try:
            yield
        finally:
            self._end()

    async def _begin(self, key: Hashable) -> None:
        if self.has_room:
            self._free -= 1
            return
        if self.waiting >= MOST_WAITING or len(self._lines.get(key, ())) >= MOST_OF_ONE:
            raise UnavailableError("too many wait for this; try again later", seconds=RETRY_SECONDS)
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(key, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._end()  # it was given to one who had gone
            raise

    def _end(self) -> None:
        """Give the turn to the next who still waits; to nobody where nobody does."""
        while self._lines:
            key = next(iter(self._lines))
            line = self._lines.pop(key)
            turn = line.popleft()
            self.waiting -= 1
            if line:
                self._lines[key] = line  # at the end
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
