"""Access control of the operators' listener, based on the Host header and the token.

A web page can make its own name resolve to 127.0.0.1, and so reach loopback from a browser on this machine (DNS
rebinding). So on loopback only the names of this machine are accepted in the Host header.
"""

import base64
import hashlib
import hmac
from collections import Counter
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from conclave.config.admin import FORMAT_FAULT, TOKEN, AdminConfig
from conclave.system.streams import is_stream
from conclave.wire.response_head import HEADERS

OPEN_PATHS = frozenset(("/healthz", "/readyz"))
"""Paths that need no token. Without one they return only the status."""

LOOPBACK_HOSTS = frozenset(("localhost", "127.0.0.1", "[::1]"))
"""The names of this machine on loopback, in addition to ``hosts``."""

MAX_TOKEN_FILE_BYTES = 4096
"""The largest token file."""

BEARER_CHALLENGE, BASIC_CHALLENGE = (
    "Bearer",
    'Basic realm="Conclave: the token of [admin] is the password", charset="UTF-8"',
)
"""The WWW-Authenticate challenges for programs and for browsers. Scripts cannot read a browser's password dialog."""

IS_OPERATOR = web.RequestKey("is_operator", bool)
"""Whether the request comes from an operator: it has the token, or no token is configured."""


class TokenError(Exception):
    """The token cannot be read. The message is one line, without the token."""


class Guard:
    """Checks requests to the operators' listener. ``refused``: counts of rejected ones by reason."""

    def __init__(self, config: AdminConfig) -> None:
        """Read the token from its file, if one is configured. Raises TokenError."""
        token = token_of(config)
        self._token = _digest(token) if token else None
        allowed_hosts = {_host(each) for each in config.hosts}
        is_checked = config.is_on_loopback or bool(allowed_hosts)
        own_address = config.listen_address.lower()
        self._hosts = (LOOPBACK_HOSTS | {own_address, f"[{own_address}]"} | allowed_hosts) if is_checked else None
        self.refused: Counter[str] = Counter(host=0, token=0)

    def middleware(self) -> Middleware:
        """Return the middleware for all requests to the listener, including those to unknown paths."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            if self._hosts is not None and _host(request.headers.get("Host", "")) not in self._hosts:
                return self._refuse("host", 421, "this name is not in [admin] hosts")
            request[IS_OPERATOR] = is_operator = self._is_operator(request)
            if not is_operator and request.path not in OPEN_PATHS:
                challenge = BASIC_CHALLENGE if "text/html" in request.headers.get("Accept", "") else BEARER_CHALLENGE
                return self._refuse("token", 401, "the token of [admin] is missing or wrong", challenge)
            return await handler(request)

        return guard

    def _is_operator(self, request: web.Request) -> bool:
        """Return whether a request has the token, in constant time."""
        if self._token is None:
            return True
        scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
        token = _password(credentials) if scheme.lower() == "basic" else credentials.strip()
        return scheme.lower() in ("bearer", "basic") and hmac.compare_digest(_digest(token), self._token)

    def _refuse(self, reason: str, status: int, message: str, challenge: str | None = None) -> web.Response:
        self.refused[reason] += 1
        headers = {"WWW-Authenticate": challenge} if challenge else {}
        return web.json_response({"message": message}, status=status, headers={**HEADERS, **headers})


def _password(credentials: str) -> str:
    """Return the password of HTTP Basic, which is the token; "" if malformed. The username is ignored."""
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode("ascii").partition(":")[2]
    except ValueError:
        return ""


def token_of(config: AdminConfig) -> str | None:
    """Return the configured token, if any. Raises TokenError."""
    return config.token or (_read(Path(config.token_file)) if config.token_file else None)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _host(header: str) -> str:
    """Return the name in a Host header in lower case, without the port."""
    name = header.strip().lower()
    if name.startswith("["):
        address, _, port = name.partition("]")
        return f"{address}]" if port[:1] in ("", ":") else name
    return name.partition(":")[0].removesuffix(".")


def _read(path: Path) -> str:
    """Return the stripped token in a file. Raises TokenError."""
    try:
        if is_stream(path):
            raise TokenError(f"admin.token_file: {path}: is not a regular file: name one that can be read again")
        with path.open("rb") as file:
            token = file.read(MAX_TOKEN_FILE_BYTES + 1).decode("ascii").strip()
    except OSError as error:
        raise TokenError(f"admin.token_file: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TokenError(f"admin.token_file: {path}: contains no token: {FORMAT_FAULT}") from error
    if not TOKEN.fullmatch(token):
        raise TokenError(f"admin.token_file: {path}: {FORMAT_FAULT}")
    return token
