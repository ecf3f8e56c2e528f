"""Sends requests and reads the answers: timeouts, repeats, TLS, the token."""

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
from conclave.client.errors import AnswerError, AnswerTooLongError, ClientError, NoAnswerError, RefusedError, error_for
from conclave.client.retry import GATEWAY_STATUSES, MAX_REPEAT_SECONDS, Backoff, seconds_since_boot
from conclave.errors import ErrorCode
from conclave.wire.fields import CLOCK_IN_DOUBT
from conclave.wire.formats import Format, body_format
from conclave.wire.results import EmptyResult, ErrorBody
from conclave.wire.schemas.base import RequestSchema

API = "/api/v1"

STREAM_TIMEOUT_SECONDS = 45.0
"""Time without data after which a stream is treated as broken: the server writes to it every 15 seconds."""

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""The maximum size of an answer, decompressed."""

MAX_BODIES_BYTES = 64 * 1024 * 1024
"""The maximum size of an answer with messages, welcomes, or groups with their members.

A group with 300,000 members takes 57 MB in JSON.
"""

MAX_ERROR_BYTES = 1024 * 1024
"""The maximum size of an error, which may have an entry for each item of a request."""

_CHUNK_BYTES = 64 * 1024

MAX_ERROR_CHARACTERS = 1_000
"""Maximum length of an error's text, which is shown to people; the rest is dropped."""

T = TypeVar("T")


def path(*parts: str | UUID) -> str:
    """Return a path of percent-encoded parts. Raises ValueError for an empty part, "." and ".."."""
    texts = [str(each) for each in parts]
    if not {"", ".", ".."}.isdisjoint(texts):
        raise ValueError('a part of a path must not be empty, "." or ".."')
    return "".join(f"/{quote(each, safe='')}" for each in texts)


@dataclass(frozen=True)
class Timeouts:
    """Seconds for opening a connection, and for a request with its answer."""

    connect: float = 10.0
    request: float = 60.0


@dataclass(frozen=True)
class Call:
    """A request."""

    method: str
    path: str
    """Percent-encoded, from ``path``."""
    schema: type[RequestSchema] | None = None
    body: Any = None
    """An object of the class that ``schema`` loads."""
    query: Mapping[str, str] | None = None
    repeatable: bool = False
    """Whether executing it twice has the same effect as once."""
    max_bytes: int = MAX_ANSWER_BYTES
    """The maximum size of the answer."""


def tls_context(ca: Path | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the system's certificate authorities, or only those of the file ``ca``."""
    return ssl.create_default_context(cafile=str(ca) if ca else None)


class Transport:
    """The connection to one server. ``async with`` opens and closes it."""

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
        """``url``: like "https://chat.example.org". ``ca``: a file of authorities to trust instead of the system's.

        ``auth_header``: the header for the token, as the operator has set it. Raises ValueError for an invalid URL,
        and for one with a username, a password or a query.
        """
        self.url = URL(url.rstrip("/"))
        if self.url.scheme not in ("http", "https") or not self.url.host:
            raise ValueError("the server's address must begin with http:// or https://")
        if self.url.user or self.url.password or self.url.query_string or self.url.fragment:
            raise ValueError("the server's address must have only a host, a port and a path")
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
        # aiohttp repeats every GET, but fetching a key package twice uses up two. It has no public option for that.
        self._http._retry_connection = False  # noqa: SLF001 - see above
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._http:
            await self._http.close()

    async def request(self, call: Call, kind: type[T], *, written_in: Format | None = None) -> T:
        """Send a request, with repeats, and return its answer.

        ``written_in``: the format of both, for calls that the protocol has in only one. ``on_trouble`` is called after
        the first attempt without an answer, since repeats may take half a minute, and with None after the next answer.
        Raises ClientError.
        """
        failures, started_at = 0, self._clock()
        while True:
            try:
                answer = await self._request_once(call, kind, written_in or self.written_in)
            except ClientError as error:
                failures += 1
                wait = self.backoff.wait_after(error, failures, self._chance(), repeatable=call.repeatable)
                if isinstance(error, NoAnswerError):
                    self._report_trouble(error)
                elif isinstance(error, RefusedError) and error.status not in GATEWAY_STATUSES:
                    self._report_trouble(None)
                if wait is None:
                    raise
                await asyncio.sleep(wait)
                if self._clock() - started_at >= MAX_REPEAT_SECONDS:
                    raise
            else:
                self._report_trouble(None)
                return answer

    async def send(self, call: Call) -> None:
        """Send a request with an empty answer. Raises ClientError."""
        await self.request(call, EmptyResult)

    async def stream(self, path: str, query: Mapping[str, str]) -> ClientResponse:
        """Open a stream, which the caller must close. Raises ClientError."""
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

    async def _request_once(self, call: Call, kind: type[T], written_in: Format) -> T:
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
                allow_redirects=False,  # a redirect would send the token to another server
                skip_auto_headers=("Content-Type",),
            ) as response:
                if response.status >= 300:
                    raise await self._refusal(response)
                self._report_time(response)  # before the body, which may take long
                answer_body = await _read(response, call.max_bytes)
        except (HttpError, TimeoutError, OSError) as error:
            raise _no_answer(error) from error
        return marshal.read(written_in, kind, answer_body) if kind is not EmptyResult else kind()

    async def _refusal(self, response: ClientResponse) -> ClientError:
        """Return the exception for an error response."""
        after = _parse_seconds(response.headers.get("Retry-After", ""))
        written_in = body_format(response.content_type)
        if written_in is None:
            # The answer comes from a proxy, perhaps because the server is down.
            if response.status in GATEWAY_STATUSES:
                return RefusedError(
                    response.status, ErrorCode.UNSPECIFIED, f"the gateway answers with status {response.status}"
                )
            return AnswerError(f"no Conclave server answers at {self.url}: status {response.status}")
        try:
            async with asyncio.timeout(self._timeouts.request):  # streams have no total timeout
                body = await _read(response, MAX_ERROR_BYTES)
        except (HttpError, TimeoutError, OSError) as error:
            return _no_answer(error)
        decoded = marshal.read(written_in, ErrorBody, body)
        fields = _field_errors(orjson.loads(body).get("errors")) if written_in is Format.JSON else {}
        return error_for(response.status, decoded.error_code, decoded.message[:MAX_ERROR_CHARACTERS], fields, after)

    def _report_trouble(self, error: NoAnswerError | None) -> None:
        if self._is_in_trouble != (error is not None):
            self._is_in_trouble = error is not None
            self.on_trouble(error)

    def _report_time(self, response: ClientResponse) -> None:
        """Report the server's time to ``on_time``; None if its clock is in doubt, when Date may be a proxy's."""
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
        is_bearer = self._auth_header.lower() == "authorization"
        return {self._auth_header: f"Bearer {self.token}" if is_bearer else self.token}

    def _url_of(self, path: str) -> URL:
        return URL(f"{self.url}{API}{path}", encoded=True)

    @property
    def _session(self) -> ClientSession:
        if self._http is None or self._http.closed:
            raise RuntimeError("use the client within `async with`")
        return self._http


async def _read(response: ClientResponse, max_bytes: int) -> bytes:
    """Return the body of an answer, unpacked. Raises AnswerTooLongError and aiohttp's errors."""
    body = bytearray()
    async for piece in response.content.iter_chunked(_CHUNK_BYTES):
        body += piece
        if len(body) > max_bytes:
            response.close()
            raise AnswerTooLongError(f"the answer is longer than {max_bytes // 1024:,} KiB")
    return bytes(body)


def _no_answer(error: Exception) -> NoAnswerError:
    reason: object = error or type(error).__name__
    if isinstance(error, ClientConnectorError) and not isinstance(error, ClientSSLError):  # its text mentions TLS
        reason = f"{error.host}:{error.port}: {error.os_error.strerror or error.os_error}"
    return NoAnswerError(f"no answer from the server: {reason}")


def _field_errors(errors: Any) -> dict[str, list[str]]:
    """Return the errors of the fields; malformed entries are ignored."""
    found = errors if isinstance(errors, dict) else {}
    return {
        name: [str(each)[:MAX_ERROR_CHARACTERS] for each in faults]
        for name, faults in found.items()
        if type(faults) is list
    }


def _parse_seconds(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
