"""Makes and parses tokens, identifies the caller, and records when sessions were last used."""

import asyncio
import hashlib
import re
import secrets
from typing import NamedTuple

from aiohttp import web

from conclave.clock import Moment
from conclave.errors import (
    AuthHeaderInvalidError,
    AuthHeaderMissingError,
    ClockInDoubtError,
    TokenExpiredError,
)
from conclave.retention.policy import end_of, session_lag
from conclave.store.resources.sessions import SessionRow
from conclave.wire.formats import Format

_TOKEN = re.compile(r"[!-~]+")
"""A token has only visible ASCII characters."""


class Caller(NamedTuple):
    """The authenticated user of a request."""

    user_id: bytes
    session_id: int


CALLER = web.RequestKey("caller", Caller)

TOKEN: web.RequestKey[str | None] = web.RequestKey("token")
"""The result of ``parse_token`` for the request."""


def new_token(issued_in: Format) -> str:
    """Return a new token: 32 random bytes in hex. Its last digit is odd for a protobuf client, even for JSON."""
    token = bytearray(secrets.token_bytes(32))
    token[-1] = token[-1] & 0xFE | (issued_in is Format.PROTOBUF)
    return token.hex()


def token_hash(token: str) -> bytes:
    """Return the hash of a token. Only this hash is stored."""
    return hashlib.sha256(token.encode()).digest()


def parse_token(value: str | None, name: str) -> str | None:
    """Return the token in the value of the header ``name``: ``Bearer TOKEN`` in Authorization, bare in any other.

    None: the header is absent. "": it has no valid token.
    """
    if value is None:
        return None
    if name.lower() == "authorization":
        scheme, _, value = value.partition(" ")
        if scheme.lower() != "bearer":
            return ""
    token = value.strip()
    return token if _TOKEN.fullmatch(token) else ""


def require_token(request: web.Request) -> str:
    """Return the token of a request. Raises AuthHeaderMissingError or AuthHeaderInvalidError."""
    token = request[TOKEN]
    if token is None:
        raise AuthHeaderMissingError
    if not token:
        raise AuthHeaderInvalidError
    return token


class SessionActivity:
    """Records when sessions were last used. It is stored later, for many at a time.

    The stored expiry lags behind by at most ``retention.policy.session_lag``. Here it is exact.
    """

    def __init__(self, ttl: int) -> None:
        """``ttl``: the seconds from the last use of a session to its expiry."""
        self._ttl = ttl
        self._last_used: dict[int, int] = {}
        self.urgent = asyncio.Event()

    def use(self, session: SessionRow | None, moment: Moment) -> Caller:
        """Extend a session, and return its caller.

        Raises TokenExpiredError if the session is unknown or expired, and ClockInDoubtError if it is expired only
        according to a clock in doubt: clients log out for good when a session has ended.
        """
        if session is None:
            raise TokenExpiredError
        now = moment.now
        if now >= session.expires_at:  # otherwise it is valid in any case
            expires_at = self.expires_at(session)
            if moment.earliest >= expires_at:
                raise TokenExpiredError
            if now >= expires_at:
                raise ClockInDoubtError
        if now > session.last_used_at:
            self._last_used[session.session_id] = now
        if session.expires_at - now < session_lag(self._ttl):
            # Otherwise a crash could leave an active session with an expired stored time.
            self.urgent.set()
        return Caller(session.user_id, session.session_id)

    def last_used(self, session: SessionRow) -> int:
        """Return the Unix second of a session's last use."""
        return max(session.last_used_at, self._last_used.get(session.session_id, 0))

    def expires_at(self, session: SessionRow) -> int:
        """Return the Unix second at which a session expires."""
        last_used = self._last_used.get(session.session_id)
        return session.expires_at if last_used is None else max(session.expires_at, end_of(last_used, self._ttl))

    def extend(self, session_id: int, now: int) -> None:
        """Extend a session that is in use by an open stream. ``now``: Unix seconds."""
        self._last_used[session_id] = now

    def clamp(self, now: int) -> None:
        """Set last uses after ``now`` to ``now``: they were recorded while the clock was fast."""
        for session_id, last_used in self._last_used.items():
            self._last_used[session_id] = min(last_used, now)

    def unstored(self) -> dict[int, int]:
        """Return the last uses that are not stored yet: Unix seconds by session id."""
        return dict(self._last_used)

    def mark_stored(self, uses: dict[int, int]) -> None:
        """Drop ``uses``, which are stored now. Later uses of the same sessions are kept."""
        for session_id, last_used in uses.items():
            if self._last_used.get(session_id) == last_used:
                del self._last_used[session_id]
