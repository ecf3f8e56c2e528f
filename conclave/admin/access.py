"""Decides who may ask the operators' listener: the Host that a request names, and the token that it brings.

A browser on this machine reaches loopback too, and a page from elsewhere can have its own name resolved to
127.0.0.1. The Host header shows that name, so on loopback only names of this machine are answered.
"""

import base64
import hashlib
import hmac
from collections import Counter
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from conclave.config.admin import TOKEN, UNFIT, AdminConfig
from conclave.system.streams import is_stream
from conclave.wire.response_head import HEADERS

OPEN_PATHS = frozenset(("/healthz", "/readyz"))
"""What needs no token. Without one these say a status in a word."""

LOOPBACK_HOSTS = frozenset(("localhost", "127.0.0.1", "[::1]"))
"""The names under which this machine is asked on loopback, in addition to ``hosts``."""

MAX_TOKEN_FILE_BYTES = 4096
"""A file with more than 4 KiB holds something else than a token."""

BEARER_CHALLENGE, BASIC_CHALLENGE = (
    "Bearer",
    'Basic realm="Conclave: the token of [admin] is the password", charset="UTF-8"',
)
"""How the token is asked for. A browser shows its own window for that; a page has no part in it, and cannot read it."""

IS_OPERATOR = web.RequestKey("is_operator", bool)
"""Whether the request may learn what is for operators: it has brought the token, or none is set."""


class TokenError(Exception):
    """The token cannot be read. The message is one line for the operator, without the token."""


class Guard:
    """Lets requests through to the operators' listener. ``refused``: how many it did not, by reason."""

    def __init__(self, config: AdminConfig) -> None:
        """Read the token, if it is in a file. Raises TokenError."""
        token = token_of(config)
        self._token = _digest(token) if token else None
        named = {_host(each) for each in config.hosts}
        is_checked = config.is_on_loopback or bool(named)
        own = config.listen_address.lower()
        self._hosts = (LOOPBACK_HOSTS | {own, f"[{own}]"} | named) if is_checked else None
        self.refused: Counter[str] = Counter(host=0, token=0)

    def middleware(self) -> Middleware:
        """Return what stands before every handler of the listener, those of pages that do not exist too."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            if self._hosts is not None and _host(request.headers.get("Host", "")) not in self._hosts:
                return self._refuse("host", 421, "this name is not one of [admin] hosts")
            request[IS_OPERATOR] = is_operator = self._is_operator(request)
            if not is_operator and request.path not in OPEN_PATHS:
                challenge = BASIC_CHALLENGE if "text/html" in request.headers.get("Accept", "") else BEARER_CHALLENGE
                return self._refuse("token", 401, "the token of [admin] is missing or wrong", challenge)
            return await handler(request)

        return guard

    def _is_operator(self, request: web.Request) -> bool:
        """Tell whether a request has brought the token. The time that takes says nothing about the token."""
        if self._token is None:
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        token = _password(given) if scheme.lower() == "basic" else given.strip()
        return scheme.lower() in ("bearer", "basic") and hmac.compare_digest(_digest(token), self._token)

    def _refuse(self, reason: str, status: int, message: str, challenge: str | None = None) -> web.Response:
        self.refused[reason] += 1
        headers = {"WWW-Authenticate": challenge} if challenge else {}
        return web.json_response({"message": message}, status=status, headers={**HEADERS, **headers})


def _password(credentials: str) -> str:
    """Return the password of HTTP Basic, which is the token; the name before it is anybody's. "" if there is none."""
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode("ascii").partition(":")[2]
    except ValueError:
        return ""


def token_of(config: AdminConfig) -> str | None:
    """Return the token that requests have to bring, if there is one. Raises TokenError."""
    return config.token or (_read(Path(config.token_file)) if config.token_file else None)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _host(header: str) -> str:
    """Return the name in a Host header, without its port and in lower case."""
    name = header.strip().lower()
    if name.startswith("["):
        address, _, port = name.partition("]")
        return f"{address}]" if port[:1] in ("", ":") else name
    return name.partition(":")[0].removesuffix(".")


def _read(path: Path) -> str:
    """Return the token in a file, without spaces and line ends around it. Raises TokenError."""
    try:
        if is_stream(path):
            raise TokenError(f"admin.token_file: {path}: is no file: name one that can be read again")
        with path.open("rb") as file:
            token = file.read(MAX_TOKEN_FILE_BYTES + 1).decode("ascii").strip()
    except OSError as error:
        raise TokenError(f"admin.token_file: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TokenError(f"admin.token_file: {path}: holds no token: {UNFIT}") from error
    if not TOKEN.fullmatch(token):
        raise TokenError(f"admin.token_file: {path}: {UNFIT}")
    return token
