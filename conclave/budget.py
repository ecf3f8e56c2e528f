"""How much memory all responses under way may take together: taken before bodies are read, given back as they leave.

Pages and lists are read in threads, where their sizes become known; so memory is taken in any thread. It is waited for
and given back on the event loop.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from conclave.errors import UnavailableError

WAIT_SECONDS = 2.0
"""How long a request waits for memory, at most."""

RETRY_SECONDS = 5
"""When to ask again, as it is told to who waited in vain."""

LEAVES_FREE = 4
"""What may be shorter takes at most one part in so many of what is free: large pages leave room for small ones."""

ITEM_BYTES = 1024
"""What an item of a list costs beside its body, about: the values it is made of, and their text."""

ROWS_AT_ONCE = 64
"""A list is counted so many rows at a time; one that is shorter only once it is written."""

T = TypeVar("T")


class NoRoomError(Exception):
    """A response needs ``needed`` bytes in all, and there is less."""

    def __init__(self, needed: int) -> None:
        """Tell how much has to be free."""
        super().__init__(needed)
        self.needed = needed


def cost(body_bytes: int, items: int = 1) -> int:
    """Return what ``items`` with bodies of ``body_bytes`` together take: base64 has four characters for three bytes."""
    return body_bytes * 4 // 3 + items * ITEM_BYTES


@dataclass(frozen=True)
class _Waiter:
    share: "Share"
    needed: int
    granted: asyncio.Future[None]


class Budget:
    """The memory of one server's responses.

    What is larger than all of it may go alone. Who waits is served in order of arrival; where there is too little for
    the first, those after it are not kept waiting.
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
        """The bytes that nobody has taken."""
        return max(0, self.size - self.used)

    def share(self) -> "Share":
        """Begin a response, which has taken nothing yet."""
        return Share(self)

    def take(self, share: "Share", more: int) -> bool:
        """Take ``more`` bytes for ``share``; tell whether they were there."""
        with self._lock:
            others = self.used - share.held
            if share.closed or (others and self.used + more > self.size):
                return False
            self.used += more
            share.held += more
            return True

    def hold(self, share: "Share", size: int, *, closed: bool = False) -> None:
        """Let ``share`` have ``size`` bytes, more or less than before; with ``closed``, for good."""
        with self._lock:
            if not share.closed:
                self.used += size - share.held
                share.held = size
                share.closed = closed
        self._serve()

    async def wait(self, share: "Share", needed: int, deadline: float) -> None:
        """Wait until ``share`` holds ``needed`` bytes. Raises UnavailableError at ``deadline``, by the loop's time."""
        waiter = _Waiter(share, min(needed, self.size), asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            self._serve()  # there may be room since it was looked for
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
    """What one response takes of the budget. It has to be closed, whatever becomes of the response."""

    __slots__ = ("_budget", "_claimed", "closed", "held")

    def __init__(self, budget: Budget) -> None:
        """Use ``Budget.share``."""
        self._budget = budget
        self._claimed = 0
        self.held = 0
        self.closed = False

    @property
    def turn(self) -> asyncio.Semaphore:
        """To be held while a piece of the response is written: one piece of one response at a time."""
        return self._budget.turn

    @property
    def claimed(self) -> int:
        """How much of it is taken up; what was waited for is held before that."""
        return self._claimed

    def take(self, size: int) -> None:
        """Take ``size`` bytes more. Raises NoRoomError; then whoever called ``fit`` waits, and begins anew."""
        claimed = self._claimed + size
        if claimed > self.held and not self._budget.take(self, claimed - self.held):
            raise NoRoomError(claimed)
        self._claimed = claimed

    def take_bodies(self, sizes: Sequence[int], limit: int, least: int = 1) -> int:
        """Take memory for bodies, given by their ``sizes``, from the first on; return for how many.

        As many as have ``limit`` bytes together, fewer if there is little memory, but at least ``least``. Raises
        NoRoomError.
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
                if count <= least:
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
                if taken <= least:
                    raise
            else:
                return taken

    def count(self, rows: Iterable[T]) -> Iterator[T]:
        """Yield ``rows``, and take memory for them meanwhile. Raises NoRoomError."""
        for number, row in enumerate(rows, 1):
            if number % ROWS_AT_ONCE == 0:
                self.take(ROWS_AT_ONCE * ITEM_BYTES)
            yield row

    async def fit(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Await ``attempt``, which takes what it needs; once more when there is room, where there was none.

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
        """Give back all but ``size`` bytes; these are there, whether there was room for them or not."""
        self._budget.hold(self, size)
        self._claimed = size

    def close(self) -> None:
        """Give back all, and take nothing any more: a thread that still reads may ask for it."""
        self._budget.hold(self, 0, closed=True)

    def _most(self) -> int:
        """Return how much may be taken by what can be shorter."""
        return max(self.held - self._claimed, self._budget.free // LEAVES_FREE)
