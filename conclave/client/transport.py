"""Sends requests and reads their answers: time-outs, repeats, TLS, the token."""

import asyncio
import random
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote
from uuid import UUID

import orjson
from aiohttp import (
    ClientConnectorError,
    ClientError as HttpError,
    ClientResponse,
    ClientSession,
    ClientSSLError,
    ClientTimeout,
    TCPConnector,
)
from yarl import URL

from conclave.client import marshal
from conclave.client.errors import AnswerError, AnswerTooLongError, ClientError, NoAnswerError, RefusedError, refused
from conclave.client.retry import GATEWAY_STATUSES, MAX_REPEAT_SECONDS, Backoff, seconds_since_boot
from conclave.errors import ErrorCode
from conclave.wire.fields import CLOCK_IN_DOUBT
from conclave.wire.formats import Format, body_format
from conclave.wire.results import EmptyResult, ErrorBody
from conclave.wire.schemas.base import RequestSchema

API = "/api/v1"

STREAM_TIMEOUT_SECONDS = 45.0
"""A stream on which nothing comes for 45 seconds is dead: the server writes something every 15."""

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""An answer has at most 16 MiB, unpacked."""

MAX_BODIES_BYTES = 64 * 1024 * 1024
"""One with messages, welcomes, or groups and their members has at most 64 MiB.

A group with 300,000 members takes 57 MB in JSON.
"""

MAX_ERROR_BYTES = 1024 * 1024
"""An error has at most 1 MiB: it may name what is wrong with each item of a request, which has no more."""

_PIECE = 64 * 1024

MAX_ERROR_CHARACTERS = 1_000
"""Of the text of an error 1,000 characters are kept: it is shown to people."""

T = TypeVar("T")


def path(*parts: str | UUID) -> str:
    """Return the path of a call, each part percent-encoded. Raises ValueError for a part that would lead elsewhere."""
    told = [str(each) for each in parts]
    if not {"", ".", ".."}.isdisjoint(told):
        raise ValueError("a part of a path is empty, or leads out of it")
    return "".join(f"/{quote(each, safe='')}" for each in told)


@dataclass(frozen=True)
class Timeouts:
    """Seconds for opening a connection, and for a whole request with its answer."""

    connect: float = 10.0
    request: float = 60.0


@dataclass(frozen=True)
class Call:
    """A request."""

    method: str
    path: str
    """Encoded, as ``path`` makes it."""
    schema: type[RequestSchema] | None = None
    body: Any = None
    """An object of the class that ``schema`` makes."""
    query: Mapping[str, str] | None = None
    repeatable: bool = False
    """It does no harm if the server does it twice."""
    max_bytes: int = MAX_ANSWER_BYTES
    """The bytes that its answer may have."""


def tls_context(ca: Path | None) -> ssl.SSLContext:
    """Return what checks the server's certificate: by the system's authorities, or only by those of the file ``ca``."""
    return ssl.create_default_context(cafile=str(ca) if ca else None)


class Transport:
    """Talks to one server. ``async with`` opens and closes its connections."""

    def __init__(
        self,
        url: str,
        *,
        written_in: Format = Format.JSON,
        ca: Path | None = None,
        timeouts: Timeouts = Timeouts(),
        backoff: Backoff = Backoff(),  # noqa: B008 - as above
        auth_header: str = "Authorization",
        chance: Callable[[], float] = random.random,
        clock: Callable[[], float] = seconds_since_boot,
    ) -> None:
        """``url``: as "https://chat.example.org". ``ca``: a file of authorities to trust in place of the system's.

        ``auth_header``: the header that the operator has set for the token. Raises ValueError for a URL that is none,
        or that has a name, a password or a query in it.
        """
        self.url = URL(url.rstrip("/"))
        if self.url.scheme not in ("http", "https") or not self.url.host:
            raise ValueError("the server's address must begin with http:// or https://")
        if self.url.user or self.url.password or self.url.query_string or self.url.fragment:
            raise ValueError("the server's address must have nothing but a host, a port and a path")
        self.written_in = written_in
        self.backoff = backoff
        self.token = ""
        self.on_time: Callable[[int | None], None] = lambda _: None
        self.on_trouble: Callable[[NoAnswerError | None], None] = lambda _: None
        self._is_in_trouble = False
        self._ca = ca
        self._timeouts = timeouts
        self._auth_header = auth_header
        self._chance = chance
        self._clock = clock
        self._http: ClientSession | None = None

    def __repr__(self) -> str:
        return f"Transport({str(self.url)!r})"

    async def __aenter__(self) -> Self:
        connector = TCPConnector(ssl=tls_context(self._ca)) if self.url.scheme == "https" else TCPConnector()
        self._http = ClientSession(connector=connector)
        # By itself aiohttp repeats every GET, also that of a key package, of which each is handed out once. It has no
        # public option against that.
        self._http._retry_connection = False  # noqa: SLF001 - see above
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._http:
            await self._http.close()

    async def request(self, call: Call, kind: type[T], *, written_in: Format | None = None) -> T:
        """Send a request, again if that may help, and return its answer.

        ``written_in``: the format of both, where the protocol has only one. ``on_trouble`` hears of the first of
        several tries that has no answer, since the last may come half a minute later; and, with None, of the next
        answer. Raises ClientError.
        """
        failures, began = 0, self._clock()
        while True:
            try:
                found = await self._once(call, kind, written_in or self.written_in)
            except ClientError as error:
                failures += 1
                wait = self.backoff.wait_after(error, failures, self._chance(), repeatable=call.repeatable)
                if isinstance(error, NoAnswerError):
                    self._report_trouble(error)
                if wait is None:
                    raise
                await asyncio.sleep(wait)
                if self._clock() - began >= MAX_REPEAT_SECONDS:
                    raise
            else:
                self._report_trouble(None)
                return found

    async def send(self, call: Call) -> None:
        """Send a request whose answer has nothing to tell. Raises ClientError."""
        await self.request(call, EmptyResult)

    async def stream(self, path: str, query: Mapping[str, str]) -> ClientResponse:
        """Open a stream: the caller closes it. Raises ClientError."""
        timeout = ClientTimeout(total=None, sock_connect=self._timeouts.connect, sock_read=STREAM_TIMEOUT_SECONDS)
        try:
            response = await self._session.get(
                *(self._url_of(path),), params=query, headers=self._headers(), timeout=timeout, allow_redirects=False
            )
        except (HttpError, TimeoutError, OSError) as error:
            raise _no_answer(error) from error
        if response.status == 200:
            self._report_time(response)
            return response
        async with response:
            raise await self._refusal(response)

    async def _once(self, call: Call, kind: type[T], written_in: Format) -> T:
        headers = self._headers() | {"Accept": written_in.value}
        body = None
        if call.schema:
            body = marshal.write(written_in, call.schema, call.body)
            headers["Content-Type"] = written_in.value
        timeout = ClientTimeout(total=self._timeouts.request, sock_connect=self._timeouts.connect)
        try:
            async with self._session.request(
                *(call.method, self._url_of(call.path)),
                data=body,
                params=call.query,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,  # the token is for this server only
                skip_auto_headers=("Content-Type",),
            ) as response:
                if response.status >= 300:
                    raise await self._refusal(response)
                self._report_time(response)  # before the rest is read, which takes time
                found = await _read(response, call.max_bytes)
        except (HttpError, TimeoutError, OSError) as error:
            raise _no_answer(error) from error
        return marshal.read(written_in, kind, found) if kind is not EmptyResult else kind()

    async def _refusal(self, response: ClientResponse) -> ClientError:
        """Return the error that an answer means."""
        after = _parse_seconds(response.headers.get("Retry-After", ""))
        written_in = body_format(response.content_type)
        if written_in is None:
            # Not the server's own: a proxy's, perhaps while the server is away.
            if response.status in GATEWAY_STATUSES:
                return RefusedError(response.status, ErrorCode.UNSPECIFIED, f"the gateway says {response.status}")
            return AnswerError(f"no Conclave server answers at {self.url}: status {response.status}")
        try:
            async with asyncio.timeout(self._timeouts.request):  # a stream has no limit of its own
                body = await _read(response, MAX_ERROR_BYTES)
        except (HttpError, TimeoutError, OSError) as error:
            return _no_answer(error)
        told = marshal.read(written_in, ErrorBody, body)
        fields = _field_errors(orjson.loads(body).get("errors")) if written_in is Format.JSON else {}
        return refused(response.status, told.error_code, told.message[:MAX_ERROR_CHARACTERS], fields, after)

    def _report_trouble(self, error: NoAnswerError | None) -> None:
        if self._is_in_trouble != (error is not None):
            self._is_in_trouble = error is not None
            self.on_trouble(error)

    def _report_time(self, response: ClientResponse) -> None:
        """Hand the server's time on; None if it knows none: a Date that comes all the same is a proxy's."""
        if CLOCK_IN_DOUBT in response.headers:
            self.on_time(None)
            return
        try:
            date = parsedate_to_datetime(response.headers.get("Date", ""))
            at = int(date.replace(tzinfo=date.tzinfo or UTC).timestamp())
        except (ValueError, OverflowError):
            at = None
        self.on_time(at)

    def _headers(self) -> dict[str, str]:
        if not self.token:
            return {}
        return {self._auth_header: f"Bearer {self.token}" if self._auth_header == "Authorization" else self.token}

    def _url_of(self, path: str) -> URL:
        return URL(f"{self.url}{API}{path}", encoded=True)

    @property
    def _session(self) -> ClientSession:
        if self._http is None or self._http.closed:
            raise RuntimeError("use the client within `async with`")
        return self._http


async def _read(response: ClientResponse, max_bytes: int) -> bytes:
    """Return the body of an answer, unpacked. Raises AnswerTooLongError, and what aiohttp raises."""
    body = bytearray()
    async for piece in response.content.iter_chunked(_PIECE):
        body += piece
        if len(body) > max_bytes:
            response.close()
            raise AnswerTooLongError(
                f"the answer is longer than {max_bytes // 1024:,} KiB, as none of this protocol is"
            )
    return bytes(body)


def _no_answer(error: Exception) -> NoAnswerError:
    why: object = error or type(error).__name__
    if isinstance(error, ClientConnectorError) and not isinstance(error, ClientSSLError):  # its text tells of TLS
        why = f"{error.host}:{error.port}: {error.os_error.strerror or error.os_error}"
    return NoAnswerError(f"no answer from the server: {why}")


def _field_errors(errors: Any) -> dict[str, list[str]]:
    """Return what is wrong with each field, as far as that is told as the protocol says."""
    found = errors if isinstance(errors, dict) else {}
    return {
        name: [str(each)[:MAX_ERROR_CHARACTERS] for each in faults]
        for name, faults in found.items()
        if type(faults) is list
    }


def _parse_seconds(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
