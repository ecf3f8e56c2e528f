"""Limits the memory of responses that are being sent, in total and by account.

A response counts from its creation until the operating system has accepted all of it. If the limit is exceeded, slow
connections are aborted, and their clients retry. Only for the event loop's thread.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from conclave.logs.setup import get_logger

log = get_logger(__name__)

ACCOUNT_DIVISOR = 8
"""The responses of one account use at most an eighth of the memory; a single response may use more."""

GRACE_SECONDS, GRACE_BYTES = 1.0, 4 * 1024 * 1024
"""A client's speed is known only after a second. During that second up to 4 MiB are added to the bytes that it
has read, decreasing to 0.
"""


class PendingResponse:
    """A response that is being sent."""

    __slots__ = ("_began_at", "_budget", "_left", "_size", "abort", "account", "held")

    def __init__(
        self, budget: "Budget", account: bytes | None, size: int, left: Callable[[], int], abort: Callable[[], None]
    ) -> None:
        """Use ``Budget.waiting`` instead."""
        self._budget, self._size, self._left = budget, size, left
        self._began_at = asyncio.get_running_loop().time()
        self.account, self.abort = account, abort
        self.held = 0

    def hold(self, size: int) -> None:
        """Set the number of bytes that it uses. Abort connections if the limit is exceeded."""
        self._budget.hold(self, size)

    def rate(self, now: float) -> float:
        """Return how many bytes a second the client reads, with the allowance for a new response."""
        seconds = now - self._began_at
        allowance = GRACE_BYTES * max(0.0, 1 - seconds / GRACE_SECONDS)
        return (self._size - self._left() + allowance) / max(seconds, GRACE_SECONDS)


class Budget:
    """The memory budget of the responses that are being sent."""

    def __init__(self, size: int) -> None:
        """``size``: bytes. It may be changed: the new value applies to later responses."""
        self.size = size
        self.used = 0
        self.cut_off: Counter[str] = Counter(account=0, memory=0)
        """The number of aborted responses by reason: the limit of the account, or the total."""
        self.turn = asyncio.Semaphore(1)
        """Held while a thread writes a part of a list: one at a time."""
        self._responses: set[PendingResponse] = set()
        self._by_account: Counter[bytes | None] = Counter()

    @contextmanager
    def waiting(
        self, account: bytes | None, held: int, size: int, left: Callable[[], int], abort: Callable[[], None]
    ) -> Iterator[PendingResponse]:
        """Count ``held`` bytes for a response of ``size`` bytes while the block lasts.

        ``account``: its user; None if not authenticated. ``left``: returns the number of unsent bytes. ``abort``:
        aborts the connection.
        """
        response = PendingResponse(self, account, size, left, abort)
        self._responses.add(response)
        try:
            self.hold(response, held)
            yield response
        finally:
            self._release(response)

    def hold(self, response: PendingResponse, size: int) -> None:
        """Count ``size`` bytes for a response. Abort the slowest responses if a limit is exceeded."""
        if response not in self._responses:
            return  # it was aborted
        self._count(response, size - response.held)
        while self._by_account[response.account] > self.size // ACCOUNT_DIVISOR:
            account_responses = [each for each in self._responses if each.account == response.account]
            if len(account_responses) == 1:
                break
            self._abort_slowest(account_responses, "account")
        while self.used > self.size:
            # Candidates are all accounts that use at least half as much as the largest. Otherwise many accounts with
            # slightly less than a fast client would cause that client to be aborted.
            minimum = max(self._by_account.values()) / 2
            self._abort_slowest(
                [each for each in self._responses if self._by_account[each.account] >= minimum], "memory"
            )

    def _count(self, response: PendingResponse, change: int) -> None:
        self.used += change
        response.held += change
        self._by_account[response.account] += change

    def _abort_slowest(self, candidates: list[PendingResponse], reason: str) -> None:
        """Abort the response whose client reads slowest. Its memory counts as free at once."""
        now = asyncio.get_running_loop().time()
        slowest = min(candidates, key=lambda each: each.rate(now))
        log.info("response_cut_off", reason=reason, held_bytes=slowest.held)
        self.cut_off[reason] += 1
        self._release(slowest)
        slowest.abort()

    def _release(self, response: PendingResponse) -> None:
        if response in self._responses:
            self._responses.remove(response)
            self._count(response, -response.held)
            if not self._by_account[response.account]:
                del self._by_account[response.account]
