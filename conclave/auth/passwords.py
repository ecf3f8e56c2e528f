"""Hashes and checks passwords in threads, a few at a time, in fair order."""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError

from conclave.errors import (
    ApiError,
    UnavailableError,
)

MAX_WAITING = 1_000
"""The most waiting callers, over all keys."""

MAX_WAITING_PER_KEY = 500
"""The most waiting callers with the same key."""

RETRY_SECONDS = 5
"""Clients may retry after 5 seconds if too many callers wait."""


class FairSemaphore:
    """A semaphore for ``at_once`` callers, fair between keys.

    Keys take turns, so callers with one key delay only each other. If too many wait, the last caller of the longest
    queue is rejected in favour of a shorter one. For the event loop only.
    """

    def __init__(self, at_once: int) -> None:
        """``at_once``: the number of concurrent callers."""
        self._free = at_once
        self._queues: dict[Hashable, deque[asyncio.Future[None]]] = {}
        """The waiting callers by key. The key whose turn is next comes first."""
        self.waiting = 0
        """The number of waiting callers."""

    @property
    def has_room(self) -> bool:
        """Whether the next caller enters without waiting."""
        return self._free > 0

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[None]:
        """Wait for a turn, and hold it during the block. Raises UnavailableError if too many wait."""
        await self._begin(key)
        try:
            yield
        finally:
            self._end()

    async def _begin(self, key: Hashable) -> None:
        if self.has_room:
            self._free -= 1
            return
        queue_length = len(self._queues.get(key, ()))
        if queue_length >= MAX_WAITING_PER_KEY or (self.waiting >= MAX_WAITING and not self._make_room(queue_length)):
            raise _too_many()
        turn = asyncio.get_running_loop().create_future()
        self._queues.setdefault(key, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and not turn.exception():
                self._end()  # the turn was given to a cancelled caller
            raise

    def _make_room(self, queue_length: int) -> bool:
        """Reject the last caller of the longest queue if the caller's queue is shorter. Return whether there is room.

        ``queue_length``: the number of callers in the caller's queue.
        """
        longest = max(self._queues.values(), key=len)
        if len(longest) <= queue_length + 1:
            return False
        last = longest.pop()
        self.waiting -= 1
        if not last.done():
            last.set_exception(_too_many())
        return True

    def _end(self) -> None:
        """Pass the turn to the next waiting caller, if any."""
        while self._queues:
            key = next(iter(self._queues))
            queue = self._queues.pop(key)
            turn = queue.popleft()
            self.waiting -= 1
            if queue:
                self._queues[key] = queue  # at the end
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


def _too_many() -> UnavailableError:
    return UnavailableError("too many requests are waiting; try again later", seconds=RETRY_SECONDS)


CONCURRENT_CHECKS = 2
"""The most concurrent checks. Argon2 takes 19 MiB and a core for each."""

CONCURRENT_HASHES = 1
"""The most concurrent hashes of new passwords. They have their own semaphore, so that logins do not wait for them."""

MEMORY_KIB = 19_456
"""OWASP's parameters for Argon2id: 19 MiB of memory, 2 passes, 1 lane."""

PASSES = 2
LANES = 1

_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
"""Letters and digits without those that are easily confused."""


def new_password() -> str:
    """Return a random password of 100 bits: 20 letters and digits in groups of five."""
    return "-".join("".join(secrets.choice(_LETTERS) for _ in range(5)) for _ in range(4))


def hash_password(password: str) -> str:
    """Return the Argon2id hash of ``password`` with its salt and parameters. Takes about 30 ms of a core."""
    return _hasher().hash(password)


class Passwords:
    """Hashes and checks passwords in threads."""

    def __init__(self) -> None:
        """Create the dummy hash for logins of unknown users."""
        self._dummy = hash_password(secrets.token_hex())
        self.checks = FairSemaphore(CONCURRENT_CHECKS)
        self.hashes = FairSemaphore(CONCURRENT_HASHES)

    async def hash(self, password: str) -> str:
        """Hash a password in a thread, see ``hash_password``. The caller must hold a turn of ``hashes``."""
        return await asyncio.to_thread(hash_password, password)

    async def require_match(self, password_hash: str, password: str, wrong: type[ApiError]) -> None:
        """Check a password against a stored hash. Raises ``wrong`` if it does not match.

        ``password_hash``: "" for an unknown user: the check takes as long, and always fails. The caller must hold a
        turn of ``checks``.
        """
        matches = await asyncio.to_thread(_matches, password_hash or self._dummy, password)
        if not (password_hash and matches):
            raise wrong


def _hasher() -> PasswordHasher:
    return PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=LANES)


def _matches(password_hash: str, password: str) -> bool:
    try:
        return _hasher().verify(password_hash, password)
    except VerifyMismatchError:
        return False
