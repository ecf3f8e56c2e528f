"""Hashes and checks passwords off the event loop, a few at a time.

``FairSemaphore`` limits how many callers do something at once, and lets those who wait take turns.
"""

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
"""At most 1,000 wait, with all keys together."""

MAX_WAITING_PER_KEY = 500
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
        if own >= MAX_WAITING_PER_KEY or (self.waiting >= MAX_WAITING and not self._make_room(own)):
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


CONCURRENT_CHECKS = 2
"""At most 2 passwords are checked at once. Argon2 takes 19 MiB and a core for each."""

CONCURRENT_HASHES = 1
"""At most 1 new password is hashed at once. New passwords have their own turns: no login waits for one."""

MEMORY_KIB = 19_456
"""OWASP's parameters for Argon2id: 19 MiB of memory, 2 passes, 1 lane."""

PASSES = 2
LANES = 1

_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
"""Letters and digits that are not mistaken for each other when they are read out."""


def new_password() -> str:
    """Return a new random password of 100 bits: 20 letters and digits, in groups of five."""
    return "-".join("".join(secrets.choice(_LETTERS) for _ in range(5)) for _ in range(4))


def hash_password(password: str) -> str:
    """Return the Argon2id hash of ``password``, with its salt and parameters. Takes a core for some 30 ms."""
    return _hasher().hash(password)


class Passwords:
    """Hashes and checks passwords off the event loop, a few at a time."""

    def __init__(self) -> None:
        """Prepare the dummy hash that unknown users are checked against."""
        self._dummy = hash_password(secrets.token_hex())
        self.checks = FairSemaphore(CONCURRENT_CHECKS)
        self.hashes = FairSemaphore(CONCURRENT_HASHES)

    async def hash(self, password: str) -> str:
        """Return what ``hash_password`` returns. The caller must have a turn of ``hashes``."""
        return await asyncio.to_thread(hash_password, password)

    async def require_match(self, stored: str, password: str, wrong: type[ApiError]) -> None:
        """Check a password against a stored hash. Raises ``wrong`` if it does not match.

        ``stored``: "" for an unknown user, which takes as long and never matches. The caller must have a turn of
        ``checks``.
        """
        matches = await asyncio.to_thread(_matches, stored or self._dummy, password)
        if not (stored and matches):
            raise wrong


def _hasher() -> PasswordHasher:
    return PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=LANES)


def _matches(stored: str, password: str) -> bool:
    try:
        return _hasher().verify(stored, password)
    except VerifyMismatchError:
        return False
