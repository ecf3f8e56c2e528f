"""Limits the memory that all responses under way take together, and what one account takes of it.

A large response takes memory before it is sent, and gives it back once its client has taken it. Where there is none
left, the memory of a slow response is taken back: its connection is cut off.

Pages are read in threads, so any thread may take memory. Only the event loop waits for it, gives it back and cuts off.
A list takes none before it is read: a part of it that is in memory is small, and always granted.
"""

import asyncio
import math
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from conclave.errors import UnavailableError
from conclave.logs.setup import get_logger

log = get_logger(__name__)

WAIT_SECONDS = 2.0
"""A request waits at most 2 seconds for memory."""

RETRY_SECONDS = 5
"""A request that waited in vain is told to come back after 5 seconds."""

ACCOUNTS = 8
"""One account takes at most an eighth of the memory."""

SMALL_BYTES = 64 * 1024
"""A response of at most 64 KiB never waits for memory. It takes some only while its client lets it wait."""

YOUNG_SECONDS, HOPED_BYTES = 1.0, 4 * 1024 * 1024
"""How fast a client takes a response is known only after a second. At its beginning 4 MiB count as taken besides what
was, more than any response has, and less and less until then.
"""

SLOW_SECONDS = 60.0
"""An account of which a response was cut off for others has none of others cut off for it for a minute.

Otherwise slow accounts would cut off each other without end, and those who ask once would wait behind them.
"""

ITEM_BYTES = 1024
"""About 1 KiB: an item of a page costs this besides its body, for its values and their text."""

T = TypeVar("T")


class NoRoomError(Exception):
    """There is too little memory now: the response needs ``needed`` bytes in all."""

    def __init__(self, needed: int) -> None:
        """``needed``: the bytes that have to be free."""
        super().__init__(needed)
        self.needed = needed


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

    Responses that wait are served in the order of their arrival, those of each account for themselves. Accounts that
    were too slow for others come last, and of the rest those first that hold the least.
    """

    def __init__(self, size: int) -> None:
        """``size``: bytes."""
        self.size = size
        self.used = 0
        self.cut_off: Counter[str] = Counter(account=0, memory=0)
        """How many responses were cut off: since their account took too much, or since others had too little."""
        self._of_account: dict[bytes | None, int] = {}
        self._sending: set[Share] = set()
        """Those whose memory can be taken back: of responses on their way, and of those that wait to be read anew."""
        self._slow: dict[bytes | None, float] = {}
        """The accounts of which a response was cut off for others, and when, by the loop's time."""
        self._lock = threading.Lock()
        self._waiting: dict[bytes | None, deque[_Waiter]] = {}
        self.turn = asyncio.Semaphore(1)

    @property
    def of_account(self) -> int:
        """The bytes that one account may take."""
        return self.size // ACCOUNTS

    def share(self, account: bytes | None = None) -> "Share":
        """Return the share of a new response. It has taken nothing yet. ``account``: who asks; None: a stranger."""
        return Share(self, account)

    def room_of(self, account: bytes | None) -> int:
        """Return how many bytes an account may take now without anybody being cut off."""
        return min(self.of_account - self._of_account.get(account, 0), self.size - self.used)

    def take(self, share: "Share", more: int) -> bool:
        """Take ``more`` bytes for ``share``. Return whether they were free."""
        with self._lock:
            of_account = self._of_account.get(share.account, 0) + more
            if share.closed or of_account > self.of_account or self.used + more > self.size:
                return False
            self._add(share, more)
            return True

    def hold(self, share: "Share", size: int) -> None:
        """Set what ``share`` holds to ``size`` bytes, more or less than before. If that is too much, cut off."""
        with self._lock:
            if not share.closed:
                self._add(share, size - share.held)
        while self._of_account.get(share.account, 0) > self.of_account and self._cut_off_own(share.account):
            pass
        while self.used > self.size and self._cut_off_largest(but_not=share):
            pass
        self._serve()

    def give_back(self, share: "Share") -> None:
        """Take back what a closed share holds."""
        self._take_back(share)
        if self._waiting:
            self._serve()

    def begin_sending(self, share: "Share") -> None:
        """Note that ``share`` can be cut off."""
        self._sending.add(share)

    def end_sending(self, share: "Share") -> None:
        """Note that ``share`` cannot be cut off any more."""
        self._sending.discard(share)

    async def wait(self, share: "Share", needed: int, deadline: float) -> None:
        """Wait until ``share`` holds ``needed`` bytes. Raises UnavailableError at ``deadline``, by the loop's time."""
        waiter = _Waiter(share, needed, asyncio.get_running_loop().create_future())
        line = self._waiting.setdefault(share.account, deque())
        line.append(waiter)
        try:
            self._serve()  # memory may have become free since the last look
            async with asyncio.timeout_at(deadline):
                await waiter.granted
        except TimeoutError as error:
            raise UnavailableError("too much is being sent at the moment", seconds=RETRY_SECONDS) from error
        finally:
            if waiter in line:
                line.remove(waiter)
            if not line and self._waiting.get(share.account) is line:
                del self._waiting[share.account]

    def _add(self, share: "Share", more: int) -> None:
        """Note that ``share`` holds ``more`` bytes more. The lock is held."""
        self.used += more
        share.held += more
        of_account = self._of_account.pop(share.account, 0) + more
        if of_account:
            self._of_account[share.account] = of_account

    def _take_back(self, share: "Share") -> None:
        self._sending.discard(share)
        with self._lock:
            self._add(share, -share.held)

    def _serve(self) -> None:
        if not self._waiting:
            return
        lines = sorted(
            self._waiting.items(), key=lambda each: (self._was_slow(each[0]), self._of_account.get(each[0], 0))
        )
        for _, line in lines:
            while line and (line[0].granted.done() or self._find_room(line[0].share, line[0].needed)):
                waiter = line.popleft()
                if not waiter.granted.done():
                    waiter.granted.set_result(None)
                    self._sending.add(waiter.share)

    def _find_room(self, share: "Share", needed: int) -> bool:
        """Take ``needed`` bytes for ``share``, of others if need be. Return whether it got them."""
        while not self.take(share, needed):
            held = self._of_account.get(share.account, 0)
            if share.closed or held + needed > self.of_account:
                return False
            if self._was_slow(share.account) or not self._cut_off_largest(held):
                return False
        return True

    def _was_slow(self, account: bytes | None) -> bool:
        """Tell whether a response of an account was cut off for others within SLOW_SECONDS."""
        return self._slow.get(account, -math.inf) > asyncio.get_running_loop().time() - SLOW_SECONDS

    def _cut_off_own(self, account: bytes | None) -> bool:
        """Cut off the slowest response of an account, unless it has no other. Return whether one was cut off."""
        own = [each for each in tuple(self._sending) if each.account == account and each.is_sending]
        if len(own) > 1:
            self._cut_off(_slowest(own), "account")
        return len(own) > 1

    def _cut_off_largest(self, more_than: int = 0, but_not: "Share | None" = None) -> bool:
        """Cut off the slowest response of the accounts that hold the most. Return whether one was cut off.

        One that waits to be read goes before all others: it only waits again.

        These are the ones that hold at least half of what the first of them holds: otherwise who asks for a little less
        than others would have these cut off, however fast they are. ``more_than``: only of accounts that hold more.
        ``but_not``: it is not cut off.
        """
        of = {each: self._of_account.get(each.account, 0) for each in tuple(self._sending)}  # threads remove some
        least = max(of.values(), default=0) / 2
        among = [each for each, held in of.items() if held >= least and held > more_than and each is not but_not]
        if among and not (slowest := _slowest(among)).is_sending:
            self._take_back(slowest)
        elif among:
            self._slow.pop(slowest.account, None)
            self._slow[slowest.account] = asyncio.get_running_loop().time()
            while self._slow and not self._was_slow(first := next(iter(self._slow))):
                del self._slow[first]
            self._cut_off(slowest, "memory")
        return bool(among)

    def _cut_off(self, share: "Share", reason: str) -> None:
        log.info("response_cut_off", reason=reason, held_bytes=share.held)
        self.cut_off[reason] += 1
        share.closed = True
        self._take_back(share)
        share.abort()


def _slowest(among: list["Share"]) -> "Share":
    """Return the one whose client takes the least a second."""
    now = asyncio.get_running_loop().time()
    return min(among, key=lambda each: each.rate(now))


class Share:
    """One response's share of the budget. It has to be closed, also if the response fails."""

    __slots__ = ("_abort", "_budget", "_claimed", "_is_used", "_left", "_size", "account", "began", "closed", "held")

    _left: Callable[[], int] | None

    def __init__(self, budget: Budget, account: bytes | None) -> None:
        """Use ``Budget.share`` instead."""
        self._budget = budget
        self._claimed = 0
        self._is_used = False
        self._left = None
        self.account = account
        """Set it before anything is taken."""
        self.held = 0
        self.closed = False

    @property
    def turn(self) -> asyncio.Semaphore:
        """Hold this while a piece of the response is written: one piece of one response at a time."""
        return self._budget.turn

    def take(self, size: int) -> None:
        """Take ``size`` more bytes. Raises NoRoomError: then ``fit`` waits for memory and begins anew."""
        claimed = self._claimed + size
        self._is_used = True
        self._budget.end_sending(self)  # what it may have waited for is used from here on
        if claimed > self.held and not self._budget.take(self, claimed - self.held):
            raise NoRoomError(claimed)
        self._claimed = claimed

    @property
    def is_sending(self) -> bool:
        """Whether the response is on its way."""
        return self._left is not None

    @property
    def room(self) -> int:
        """The bytes that a response may have now without waiting for memory."""
        return max(SMALL_BYTES, self.held, self._budget.room_of(self.account))

    def take_for(self, size: int) -> None:
        """Take memory for a response of ``size`` bytes, unless it is small. Raises NoRoomError."""
        if size > SMALL_BYTES:
            self.take(size)

    async def fit(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Await ``attempt``, which takes memory. If there is too little, wait for it and try again.

        Raises UnavailableError if it waits for more than WAIT_SECONDS after the first try.
        """
        deadline = math.inf
        while True:
            try:
                return await attempt()
            except NoRoomError as error:
                needed = error.needed
            # The error is gone here, and with it all that was read: its traceback would keep that.
            self.hold(0)
            deadline = min(deadline, asyncio.get_running_loop().time() + WAIT_SECONDS)
            await self._budget.wait(self, needed, deadline)

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

    def begin_sending(self, memory: int, size: int, left: Callable[[], int], abort: Callable[[], None]) -> None:
        """Hold ``memory`` for a response of ``size`` bytes that is on its way. It is cut off if its memory is needed.

        ``left``: returns how many of its bytes wait for the client. ``abort``: breaks the connection.
        """
        self._size, self._left, self._abort = size, left, abort
        self.began = asyncio.get_running_loop().time()
        self._budget.begin_sending(self)
        self.hold(memory)

    def end_sending(self) -> None:
        """Give back everything: the response has left, or its connection is broken."""
        self._budget.end_sending(self)
        self.hold(0)

    def rate(self, now: float) -> float:
        """Return how many bytes a second the client takes, and may take of a young response.

        Less than 0: nothing was read yet for which the memory is.
        """
        if self._left is None:
            return -1.0
        seconds = now - self.began
        hoped = HOPED_BYTES * max(0.0, 1 - seconds / YOUNG_SECONDS)
        return (self._size - self._left() + hoped) / max(seconds, YOUNG_SECONDS)

    def abort(self) -> None:
        """Break the connection off."""
        self._abort()

    def close(self) -> None:
        """Give back everything, and refuse to take more: a thread that still reads may ask for it."""
        self.closed = True
        if self._is_used:  # asked only now: a thread that takes anything has set it before it looked for ``closed``
            self._budget.give_back(self)
