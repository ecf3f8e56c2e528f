"""Passwords, tokens, and who is calling."""

import asyncio
import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web
from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError

from conclave.errors import (
    ApiError,
    AuthHeaderInvalidError,
    AuthHeaderMissingError,
    TokenExpiredError,
)
from conclave.policy import session_lag
from conclave.store.sessions import Session
from conclave.turns import Turns
from conclave.wire.negotiate import Format

CONCURRENT_CHECKS, CONCURRENT_HASHES = 2, 1
"""Argon2 takes 19 MiB and a core for each. New passwords have turns of their own: no login waits for one."""

MEMORY_KIB, PASSES, LANES = 19_456, 2, 1
"""OWASP's parameters for Argon2id."""

_TOKEN = re.compile(r"[!-~]+")
"""Whatever else a header may hold, a token is of visible ASCII characters."""


@dataclass(frozen=True)
class Caller:
    """The authenticated user of a request."""

    user_id: bytes
    session_id: int


CALLER = web.RequestKey("caller", Caller)


def hash_password(password: str) -> str:
    """Return the Argon2id hash of ``password``, with its salt and parameters. Takes a core for some 30 ms."""
    return _hasher().hash(password)


class Passwords:
    """Hashes and checks passwords off the event loop, a few at a time."""

    def __init__(self) -> None:
        """Prepare the dummy hash that unknown users are checked against."""
        self._dummy = hash_password(secrets.token_hex())
        self.checks = Turns(CONCURRENT_CHECKS)
        self.hashes = Turns(CONCURRENT_HASHES)

    async def hash(self, password: str) -> str:
        """Return what hash_password does. Within a turn of the caller's, one of ``hashes``."""
        return await asyncio.to_thread(hash_password, password)

    async def require_match(self, stored: str, password: str, wrong: type[ApiError]) -> None:
        """Check a password against a stored hash; "", an unknown user, takes as long and never matches.

        Within a turn of the caller's, one of ``checks``. Raises ``wrong``.
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


def new_token(issued_in: Format) -> str:
    """Return a new token: 32 random bytes in hex, the last digit odd for a protobuf client, even for a JSON one."""
    token = bytearray(secrets.token_bytes(32))
    token[-1] = token[-1] & 0xFE | (issued_in is Format.PROTOBUF)
    return token.hex()


def token_hash(token: str) -> bytes:
    """Return what the store keeps of a token."""
    return hashlib.sha256(token.encode()).digest()


def token_in(headers: Mapping[str, str], name: str) -> str | None:
    """Read the token off a request's headers: ``Bearer TOKEN`` in Authorization, or raw in one of the operator's.

    None if there is no header of that ``name``, "" if it has no token, or not in that form.
    """
    value = headers.get(name)
    if value is None:
        return None
    if name.lower() == "authorization":
        scheme, _, value = value.partition(" ")
        if scheme.lower() != "bearer":
            return ""
    token = value.strip()
    return token if _TOKEN.fullmatch(token) else ""


def require_token(headers: Mapping[str, str], name: str) -> str:
    """Read the token as token_in does. Raises AuthHeaderMissingError or AuthHeaderInvalidError."""
    token = token_in(headers, name)
    if token is None:
        raise AuthHeaderMissingError
    if not token:
        raise AuthHeaderInvalidError
    return token


class SessionActivity:
    """When sessions were last used: in memory at once, in the store a little later, many at a time.

    The stored expiry of a used session lags behind by policy.session_lag at most; here it is exact.
    """

    def __init__(self, ttl: int) -> None:
        """``ttl``: the seconds that a session lives from its last use."""
        self._ttl = ttl
        self._last_used: dict[int, int] = {}
        self.urgent = asyncio.Event()

    def use(self, session: Session | None, now: int) -> Caller:
        """Return whose session it is and extend it. Raises TokenExpiredError if it is unknown or expired."""
        if session is None:
            raise TokenExpiredError
        if now >= self.expires_at(session):
            raise TokenExpiredError
        if now > session.last_used_at:
            self._last_used[session.session_id] = now
        if session.expires_at - now < session_lag(self._ttl):
            # Else a crash within the lag would leave a stored expiry that has passed, of a session in use.
            self.urgent.set()
        return Caller(session.user_id, session.session_id)

    def last_used(self, session: Session) -> int:
        """Return when a session was last used, Unix seconds."""
        return max(session.last_used_at, self._last_used.get(session.session_id, 0))

    def expires_at(self, session: Session) -> int:
        """Return the first second at which a session is dead."""
        used = self._last_used.get(session.session_id)
        return session.expires_at if used is None else max(session.expires_at, used + self._ttl)

    def keep(self, session_id: int, now: int) -> None:
        """Extend a session that is in use without a request of its own."""
        self._last_used[session_id] = now

    def bring_back(self, now: int) -> None:
        """Count uses that lie ahead as of ``now``: a clock noted them that was fast, and set right since."""
        for session_id, used in self._last_used.items():
            self._last_used[session_id] = min(used, now)

    def unwritten(self) -> dict[int, int]:
        """Return the uses that the store does not have: session id to Unix second."""
        return dict(self._last_used)

    def written(self, uses: dict[int, int]) -> None:
        """Forget ``uses``, which the store has now."""
        for session_id, used in uses.items():
            if self._last_used.get(session_id) == used:
                del self._last_used[session_id]
