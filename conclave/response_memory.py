"""Limits the memory of responses that wait for their clients, and what one account has of it.

A response counts from when it is written until the system has taken it. None waits for room: where there is too little,
connections are cut off, and their clients ask again. Only for the event loop's thread.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from conclave.logs.setup import get_logger

log = get_logger(__name__)

ACCOUNT_DIVISOR = 8
"""The responses of one account have at most an eighth of the memory, unless it is a single one."""

GRACE_SECONDS, GRACE_BYTES = 1.0, 4 * 1024 * 1024
"""How fast a client takes a response is known only after a second. At its beginning 4 MiB count as taken besides what
was, more than most responses have, and less and less until then.
"""


class PendingResponse:
    """A response that waits for its client."""

    __slots__ = ("_began", "_budget", "_left", "_size", "abort", "account", "held")

    def __init__(
        self, budget: "Budget", account: bytes | None, size: int, left: Callable[[], int], abort: Callable[[], None]
    ) -> None:
        """Use ``Budget.waiting`` instead."""
        self._budget, self._size, self._left = budget, size, left
        self._began = asyncio.get_running_loop().time()
        self.account, self.abort = account, abort
        self.held = 0

    def hold(self, size: int) -> None:
        """Count as ``size`` bytes of memory from here on. If that is too much, connections are cut off."""
        self._budget.hold(self, size)

    def rate(self, now: float) -> float:
        """Return how many bytes a second the client takes, and may take of a young response."""
        seconds = now - self._began
        hoped = GRACE_BYTES * max(0.0, 1 - seconds / GRACE_SECONDS)
        return (self._size - self._left() + hoped) / max(seconds, GRACE_SECONDS)


class Budget:
    """The memory of one server's responses that wait for their clients."""

    def __init__(self, size: int) -> None:
        """``size``: bytes. A new one counts for what begins to wait after that."""
        self.size = size
        self.used = 0
        self.cut_off: Counter[str] = Counter(account=0, memory=0)
        """How many responses were cut off: since their account had too much, or all together."""
        self.turn = asyncio.Semaphore(1)
        """Hold this while a part of a list is written in a thread: one at a time."""
        self._waiting: set[PendingResponse] = set()
        self._of_account: Counter[bytes | None] = Counter()

    @contextmanager
    def waiting(
        self, account: bytes | None, held: int, size: int, left: Callable[[], int], abort: Callable[[], None]
    ) -> Iterator[PendingResponse]:
        """Count ``held`` bytes for a response of ``size`` bytes while the block lasts.

        ``account``: whose it is; None: a stranger's. ``left``: returns how many of its bytes wait for the client.
        ``abort``: breaks the connection off.
        """
        response = PendingResponse(self, account, size, left, abort)
        self._waiting.add(response)
        try:
            self.hold(response, held)
            yield response
        finally:
            self._let_go(response)

    def hold(self, response: PendingResponse, size: int) -> None:
        """Count ``size`` bytes for a response. Cut off the slowest of its account, and of the largest, if need be."""
        if response not in self._waiting:
            return  # it was cut off
        self._count(response, size - response.held)
        while self._of_account[response.account] > self.size // ACCOUNT_DIVISOR:
            own = [each for each in self._waiting if each.account == response.account]
            if len(own) == 1:
                break
            self._cut_off(own, "account")
        while self.used > self.size:
            # These are all that have at least half of what the first of them has. Otherwise many accounts that each
            # have a little less than a quick client would have that client cut off.
            least = max(self._of_account.values()) / 2
            self._cut_off([each for each in self._waiting if self._of_account[each.account] >= least], "memory")

    def _count(self, response: PendingResponse, more: int) -> None:
        self.used += more
        response.held += more
        self._of_account[response.account] += more

    def _cut_off(self, among: list[PendingResponse], reason: str) -> None:
        """Cut off the one whose client takes the least a second. Its memory counts as free at once."""
        now = asyncio.get_running_loop().time()
        slowest = min(among, key=lambda each: each.rate(now))
        log.info("response_cut_off", reason=reason, held_bytes=slowest.held)
        self.cut_off[reason] += 1
        self._let_go(slowest)
        slowest.abort()

    def _let_go(self, response: PendingResponse) -> None:
        if response in self._waiting:
            self._waiting.remove(response)
            self._count(response, -response.held)
            if not self._of_account[response.account]:
                del self._of_account[response.account]
