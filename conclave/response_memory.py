"""Limits the memory that all responses under way take together.

A response takes memory before its bodies are read, and gives it back as they leave. Pages are read in threads, where
their sizes become known. So any thread may take memory. Only the event loop waits for it and gives it back.

A list takes none before it is read: a part of it that is in memory is small, and always granted.
"""

import asyncio
import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from conclave.errors import UnavailableError

WAIT_SECONDS = 2.0
"""A request waits at most 2 seconds for memory."""

RETRY_SECONDS = 5
"""A request that waited in vain is told to come back after 5 seconds."""

LEAVES_FREE = 4
"""A response that can be shortened takes at most a quarter of what is free: small ones still find room."""

ITEM_BYTES = 1024
"""About 1 KiB: an item of a page costs this besides its body, for its values and their text."""

T = TypeVar("T")


class NoRoomError(Exception):
    """There is too little memory now: the response needs ``needed`` bytes in all."""

    def __init__(self, needed: int) -> None:
        """``needed``: the bytes that have to be free."""
        super().__init__(needed)
        self.needed = needed


class TooLargeError(Exception):
    """A response needs more memory than its share may take."""


def cost(body_bytes: int, items: int = 1) -> int:
    """Return the bytes of memory that ``items`` take whose bodies have ``body_bytes`` together.

    Base64 has four characters for three bytes. Each item takes ITEM_BYTES more.
    """
    return body_bytes * 4 // 3 + items * ITEM_BYTES


@dataclass(frozen=True)
class _Waiter:
    share: "Share"
    needed: int
    granted: asyncio.Future[None]


class Budget:
    """The memory that one server's responses take together.

    A response that is larger than all of it may go when no other has taken any. Waiting responses are served in the
    order of their arrival. If there is too little for the first, a later one that needs less does not wait for it.
    """

    def __init__(self, size: int) -> None:
        """``size``: bytes."""
        self.size = size
        self.used = 0
        self._lock = threading.Lock()
        self._waiting: deque[_Waiter] = deque()
        self.turn = asyncio.Semaphore(1)

    @property
    def free(self) -> int:
        """The bytes that are free."""
        return max(0, self.size - self.used)

    def resize(self, size: int) -> None:
        """Let responses take ``size`` bytes from here on. What they have taken already they keep."""
        self.size = size
        self._serve()

    def share(self, most: float = math.inf) -> "Share":
        """Return the share of a new response. It has taken nothing yet. ``most``: the bytes that it may take.

        To take more raises TooLargeError.
        """
        return Share(self, most)

    def take(self, share: "Share", more: int) -> bool:
        """Take ``more`` bytes for ``share``. Return whether they were free."""
        with self._lock:
            others = self.used - share.held
            if share.closed or (others and self.used + more > self.size):
                return False
            self.used += more
            share.held += more
            return True

    def hold(self, share: "Share", size: int) -> None:
        """Set what ``share`` holds to ``size`` bytes, more or less than before."""
        with self._lock:
            if not share.closed:
                self.used += size - share.held
                share.held = size
        self._serve()

    def give_back(self, share: "Share") -> None:
        """Take back what a closed share holds."""
        with self._lock:
            self.used -= share.held
            share.held = 0
        self._serve()

    async def wait(self, share: "Share", needed: int, deadline: float) -> None:
        """Wait until ``share`` holds ``needed`` bytes. Raises UnavailableError at ``deadline``, by the loop's time."""
        waiter = _Waiter(share, min(needed, self.size), asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            self._serve()  # memory may have become free since the last look
            async with asyncio.timeout_at(deadline):
                await waiter.granted
        except TimeoutError as error:
            raise UnavailableError("too much is being sent at the moment", seconds=RETRY_SECONDS) from error
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _serve(self) -> None:
        for waiter in tuple(self._waiting):
            if not waiter.granted.done() and self.take(waiter.share, waiter.needed):
                self._waiting.remove(waiter)
                waiter.granted.set_result(None)


class Share:
    """One response's share of the budget. It has to be closed, also if the response fails."""

    __slots__ = ("_budget", "_claimed", "_is_used", "_limit", "closed", "held")

    def __init__(self, budget: Budget, limit: float) -> None:
        """Use ``Budget.share`` instead."""
        self._budget = budget
        self._limit = limit
        self._claimed = 0
        self._is_used = False
        self.held = 0
        self.closed = False

    @property
    def turn(self) -> asyncio.Semaphore:
        """Hold this while a piece of the response is written: one piece of one response at a time."""
        return self._budget.turn

    @property
    def claimed(self) -> int:
        """The bytes that the response uses. It may hold more: memory that it waited for and has not used yet."""
        return self._claimed

    def require_no_limit(self) -> None:
        """Raise TooLargeError if there is a limit: what follows takes memory for far more than it may find."""
        if self._limit < math.inf:
            raise TooLargeError

    def take(self, size: int) -> None:
        """Take ``size`` more bytes. Raises NoRoomError: then ``fit`` waits for memory and begins anew."""
        claimed = self._claimed + size
        if claimed > self._limit:
            raise TooLargeError
        self._is_used = True
        if claimed > self.held and not self._budget.take(self, claimed - self.held):
            raise NoRoomError(claimed)
        self._claimed = claimed

    def take_all(self, body_bytes: int, items: int) -> bool:
        """Take memory for all of some bodies, unless it is a large part of what is free. Return whether it did."""
        needed = cost(body_bytes, items)
        if needed > self._most():
            return False
        try:
            self.take(needed)
        except NoRoomError:
            return False
        return True

    def take_bodies(self, sizes: Sequence[int], limit: int, least: int = 1) -> int:
        """Take memory for the first of some bodies, and return for how many.

        ``sizes``: the bytes of each body. Takes as many as have ``limit`` bytes together, fewer if there is little
        memory, but at least ``least``. Raises NoRoomError.
        """
        while True:
            most = self._most()
            count = total = 0
            for size in sizes:
                if count >= least and (total + size > limit or cost(total + size, count + 1) > most):
                    break
                count += 1
                total += size
            try:
                self.take(cost(total, count))
            except NoRoomError:
                if count <= least or self.closed:  # a closed one gets nothing, however often it asks
                    raise
            else:
                return count

    def take_up_to(self, size: int, least: int) -> int:
        """Take ``size`` bytes, or less if there is little memory, but at least ``least``; return how many.

        Raises NoRoomError.
        """
        while True:
            taken = max(min(size, self._most()), min(size, least))
            try:
                self.take(taken)
            except NoRoomError:
                if taken <= least or self.closed:
                    raise
            else:
                return taken

    async def fit(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Await ``attempt``, which takes memory. If there is too little, wait for it and try again.

        Raises UnavailableError after WAIT_SECONDS.
        """
        deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
        while True:
            try:
                return await attempt()
            except NoRoomError as error:
                self.hold(0)
                await self._budget.wait(self, error.needed, deadline)

    async def reserve(self, size: int) -> None:
        """Take ``size`` bytes more, once there is room. Raises UnavailableError after WAIT_SECONDS."""

        async def attempt() -> None:
            self.take(size)

        await self.fit(attempt)

    def hold(self, size: int) -> None:
        """Hold exactly ``size`` bytes and give back the rest. They are granted even if there is no room."""
        if size != self.held:
            self._is_used = True
            self._budget.hold(self, size)
        self._claimed = size

    def close(self) -> None:
        """Give back everything, and refuse to take more: a thread that still reads may ask for it."""
        self.closed = True
        if self._is_used:  # asked only now: a thread that takes anything has set it before it looked for ``closed``
            self._budget.give_back(self)

    def _most(self) -> int:
        """Return how many bytes a response may take that can be shortened."""
        return max(self.held - self._claimed, self._budget.free // LEAVES_FREE)
