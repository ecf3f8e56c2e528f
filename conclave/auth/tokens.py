"""Makes tokens, reads them from requests, and says who is calling."""

import hashlib
import re
import secrets
from typing import NamedTuple

from aiohttp import web

from conclave.errors import (
    AuthHeaderInvalidError,
    AuthHeaderMissingError,
)
from conclave.wire.negotiate import Format

_TOKEN = re.compile(r"[!-~]+")
"""A token has only visible ASCII characters. A header may have others."""


class Caller(NamedTuple):
    """The authenticated user of a request."""

    user_id: bytes
    session_id: int


CALLER = web.RequestKey("caller", Caller)

TOKEN: web.RequestKey[str | None] = web.RequestKey("token")
"""What ``token_in`` found in the request."""


def new_token(issued_in: Format) -> str:
    """Return a new token: 32 random bytes in hex. Its last digit is odd for a protobuf client, even for JSON."""
    token = bytearray(secrets.token_bytes(32))
    token[-1] = token[-1] & 0xFE | (issued_in is Format.PROTOBUF)
    return token.hex()


def token_hash(token: str) -> bytes:
    """Return the hash of a token. The store keeps nothing else of it."""
    return hashlib.sha256(token.encode()).digest()


def token_in(value: str | None, name: str) -> str | None:
    """Return the token in the value of the header ``name``: ``Bearer TOKEN`` in Authorization, bare in any other.

    None if there is no such header. "" if the header has no token, or one in another form.
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
