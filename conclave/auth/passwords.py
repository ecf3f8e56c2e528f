"""Hashes and checks passwords off the event loop, a few at a time."""

import asyncio
import secrets

from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError

from conclave.auth.fair_semaphore import FairSemaphore
from conclave.errors import (
    ApiError,
)

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
