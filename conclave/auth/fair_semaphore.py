"""Limits how many callers do something at once, and lets those who wait take turns."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from conclave.errors import UnavailableError

MOST_WAITING = 1_000
"""At most 1,000 wait, with all keys together."""

MOST_OF_ONE = 500
"""At most 500 wait with the same key."""

RETRY_SECONDS = 5
"""A caller that found too many waiting may ask again after 5 seconds."""


class FairSemaphore:
    """Lets at most ``at_once`` callers in at a time.

    The keys of those who wait take turns. However many wait with one key, they hold up only each other: where too many
    wait, the last caller with the key that most wait with makes room for a key that fewer wait with. For the event
    loop only.
    """

    def __init__(self, at_once: int) -> None:
        """Begin without waiting callers."""
        self._free = at_once
        self._lines: dict[Hashable, deque[asyncio.Future[None]]] = {}
        """The callers that wait, by key. The key whose turn is next comes first."""
        self.waiting = 0
        """How many wait."""

    @property
    def has_room(self) -> bool:
        """Whether the next caller gets a turn without waiting."""
        return self._free > 0

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[None]:
        """Wait for a turn, which lasts as long as the block. Raises UnavailableError if too many wait."""
        await self._begin(key)
        try:
            yield
        finally:
            self._end()

    async def _begin(self, key: Hashable) -> None:
        if self.has_room:
            self._free -= 1
            return
        own = len(self._lines.get(key, ()))
        if own >= MOST_OF_ONE or (self.waiting >= MOST_WAITING and not self._make_room(own)):
            raise _too_many()
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(key, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and not turn.exception():
                self._end()  # the turn was given to a caller who had gone
            raise

    def _make_room(self, own: int) -> bool:
        """Refuse the last caller of the longest line, unless that is no longer than the one with ``own`` callers.

        The caller who comes instead has its place among fewer. Return whether there is room.
        """
        longest = max(self._lines.values(), key=len)
        if len(longest) <= own + 1:
            return False
        last = longest.pop()
        self.waiting -= 1
        if not last.done():
            last.set_exception(_too_many())
        return True

    def _end(self) -> None:
        """Give the turn to the next caller who still waits, if there is one."""
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


def _too_many() -> UnavailableError:
    return UnavailableError("too many wait for this; try again later", seconds=RETRY_SECONDS)
