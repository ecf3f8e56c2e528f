"""Answers the most frequent requests, sending and fetching messages, without aiohttp.

Most fetches are polls without new messages, pages are often cached, and sends differ only in their body. The task and
the objects that aiohttp creates for each request cost more than the answer.

Plain requests (``framing.is_plain``) are answered here by the actions that the handlers call. All others, including
invalid ones, are left to the handlers, which report the errors.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple

import structlog
from aiohttp import hdrs, web

from conclave import app_keys
from conclave.actions.messages import Send
from conclave.api import messages
from conclave.auth import tokens
from conclave.cache.groups import FetchedPage
from conclave.errors import ApiError
from conclave.server.client_port import framing
from conclave.server.client_port.framing import RequestHead
from conclave.server.client_port.responding import RespondingConnection
from conclave.server.middleware import PIPELINE, new_request_id
from conclave.wire import page_writer, response_head
from conclave.wire.exchange import error_response, negotiate_format, request_format
from conclave.wire.fields import parse_id
from conclave.wire.formats import Format
from conclave.wire.schemas.messages import GetMessages, GetMessagesQuery, SendMessage, SendMessageRequest, write_number

MAX_CACHED = 20_000
"""At most 20,000 parsed heads are cached, in about 8 MB. Beyond that the cache is cleared."""

_VARYING = (
    rb"\r\n(?!(?i:%b:))(?:[Cc]ontent-[Ll]ength: ([1-9][0-9]{0,6})"
    rb"|(?:(?:[Xx]|[Cc][Ff])-[A-Za-z0-9-]+|[Tt]race(?:parent|state)|[Bb]aggage): ([ -~]*))(?=\r\n)"
)
"""Header values that do not affect the parsed headers: the body's length, and the request ids of proxies. %b is the
header with the token.
"""


class ParsedHeaders(NamedTuple):
    """The parsed headers of a plain request. ``cross_origin``: response headers, see ``CrossOrigin.lines``."""

    token_hash: bytes
    response_format: Format
    body_format: Format
    cross_origin: bytes


class FastRequest(NamedTuple):
    """A plain request. ``query``: None for a send. ``began``: a value of ``time.monotonic``.

    ``key``: the cache key of its headers; b"": they are cached already, or cannot be cached.
    """

    connection: RespondingConnection
    headers: ParsedHeaders
    group: str
    query: str | None
    request_id: str
    began: float
    key: bytes

    @property
    def method(self) -> str:
        """The HTTP method."""
        return hdrs.METH_POST if self.query is None else hdrs.METH_GET


class FastPath:
    """Answers plain requests for messages. Only for the event loop's thread."""

    def __init__(self, app: web.Application) -> None:
        """``app``: was started, so its resources are open."""
        self._auth_header = app[app_keys.CONFIG].auth_header
        self._auth_field = self._auth_header.lower().encode("ascii")
        self._varying = re.compile(_VARYING % re.escape(self._auth_field))
        self._headers_by_key: dict[bytes, ParsedHeaders] = {}
        """By hashes of heads, since heads contain tokens."""
        self._cross_origin = app[app_keys.CROSS_ORIGIN]
        self._pipeline = app[PIPELINE]
        self._fetcher = app[app_keys.FETCHING]
        self._sender = app[app_keys.SENDING]
        self._route = app[app_keys.ENDPOINTS][messages.fetch].path
        self._confirm_tasks: set[asyncio.Task[None]] = set()
        self._read_tasks: set[asyncio.Task[None]] = set()

    def read_head(self, text: bytes, connection: RespondingConnection) -> tuple[RequestHead, FastRequest | None]:
        """Parse a head; if the request is plain, return it too. Raises MalformedRequestError.

        Parsed headers are cached, since a client's are mostly the same: parsing takes a seventh of a poll, a tenth of a
        send. ``text``: see ``framing.read_head``.
        """
        line = framing.messages_line(text)
        if not line:
            return framing.measure(text), None
        key, length = self._key(text, line)
        headers, head = self._headers_by_key.get(key), RequestHead(length, {})
        if not headers:
            head = framing.read_head(text)
            headers = self._parse_headers(head.fields, line[1]) if framing.is_plain(line, head) else None
            if not headers:
                return head, None
        else:
            key = b""
        query = None if line[1] == framing.SEND else (line[3] or b"").decode()
        return head, FastRequest(connection, headers, line[2].decode(), query, new_request_id(), time.monotonic(), key)

    def _key(self, text: bytes, line: re.Match[bytes]) -> tuple[bytes, int]:
        """Return a hash of a head's method and headers without the varying values, and the length of the body.

        The hash is b"" for a head that cannot be cached.
        """
        length, position, parts = 0, line.end(), [line[1]]
        for match in self._varying.finditer(text, position - len(b"\r\n")):
            value = match.lastindex or 0
            parts.append(text[position : match.start(value)])
            position = match.end(value)
            if value == 1:
                length = int(match[1])
        if line[1] == framing.SEND and (line[3] is not None or not length):
            return b"", 0
        parts.append(text[position:])
        return hashlib.blake2b(b"".join(parts), digest_size=32).digest(), length

    def _parse_headers(self, fields: Mapping[bytes, bytes], method: bytes) -> ParsedHeaders | None:
        """Parse the headers of a plain request. None: a handler has to parse them."""
        names = self._auth_field, b"content-type", b"accept"
        value, content_type, accept = (fields.get(each, b"").decode("utf-8", "surrogateescape") for each in names)
        token, body_format = tokens.parse_token(value, self._auth_header), request_format(content_type)
        if not token or (method == framing.SEND and not body_format):
            return None
        response_format = negotiate_format(accept, content_type, token)
        cross_origin = self._cross_origin.lines(fields.get(b"origin", b""))
        return ParsedHeaders(tokens.token_hash(token), response_format, body_format or response_format, cross_origin)

    def cache(self, request: FastRequest) -> None:
        """Cache the parsed headers of a request. A full cache is cleared."""
        if len(self._headers_by_key) >= MAX_CACHED:
            self._headers_by_key.clear()
        self._headers_by_key[request.key] = request.headers

    def take(self, request: FastRequest, body: bytes) -> bool:
        """Answer a request, now or later. Return False, with nothing done, if a handler has to answer it.

        Call it in a step of the event loop that receives no bytes: invalidation is checked once a step, and the check
        must follow the receipt of the request.
        """
        try:
            answer = self._prepare(request, body)
        except Exception:  # noqa: BLE001 - the handler gets the same error, and reports it
            return False
        if answer:
            answer()
        return answer is not None

    async def finish(self, seconds: float) -> None:
        """Stop reading pages, and wait up to ``seconds`` until the watermarks of fetched pages are stored."""
        for task in self._read_tasks:
            task.cancel()
        if self._confirm_tasks:
            await asyncio.wait(self._confirm_tasks, timeout=seconds)

    def _prepare(self, request: FastRequest, body: bytes) -> Callable[[], object] | None:
        """Start to send a message, or find a page. Return a function that answers; None: a handler has to answer.

        If it raises, nothing was started.
        """
        headers = request.headers
        caller = self._pipeline.cached_caller(headers.token_hash)
        if not caller:
            return None
        if request.key:
            self.cache(request)  # only now: unauthenticated requests must not fill the cache
        if request.connection.account != caller.user_id:
            request.connection.set_account(caller.user_id)
        group_id = parse_id(request.group)
        if request.query is None:
            message = SendMessageRequest.quick(headers.body_format, body)
            if not isinstance(message, SendMessage):
                return None
            send_future = self._sender.begin(
                Send(group_id, caller.user_id, message.mls_message, message.self_destruct_seconds, message.send_id)
            )
            return partial(send_future.add_done_callback, partial(self._answer_send, request)) if send_future else None
        query = GetMessagesQuery.quick(request.query)
        if not isinstance(query, GetMessages):
            return None
        page_query = group_id, caller.user_id, query.after, query.limit, headers.response_format
        fetched_page = self._fetcher.read_cached(*page_query, next_confirms=query.next_confirms)
        if fetched_page:
            parts = page_writer.page_parts(headers.response_format, fetched_page.pieces)
            return partial(self._answer_page, request, fetched_page, parts)
        read = partial(
            self._fetcher.read, *page_query, include_redacted=query.include_redacted, next_confirms=query.next_confirms
        )
        return partial(_start, self._read_tasks, self._read(request, read))

    async def _read(self, request: FastRequest, read: Callable[[], Coroutine[Any, Any, FetchedPage]]) -> None:
        """Answer with a page that is not cached."""
        try:
            # Bound only here: the next request of the connection starts in this task, with its context.
            with structlog.contextvars.bound_contextvars(request_id=request.request_id):
                page = await read()
            parts = page_writer.page_parts(request.headers.response_format, page.pieces)
        except Exception as error:  # noqa: BLE001 - every error is answered
            self._refuse(request, error)
        else:
            self._answer_page(request, page, parts)

    def _answer_page(self, request: FastRequest, page: FetchedPage, parts: list[bytes]) -> None:
        parts = _with_head(request, parts)
        if page.needs_confirmation:
            # Without its pieces: in JSON they would be in memory twice.
            _start(self._confirm_tasks, self._hand_over(request, page._replace(pieces=[]), parts))
        else:
            self._record(request, HTTPStatus.OK)
            request.connection.answer(parts)

    async def _hand_over(self, request: FastRequest, page: FetchedPage, parts: list[bytes]) -> None:
        """Answer with a page of new messages, then confirm it. As in the handler, the response is sent first."""
        status: int = HTTPStatus.OK
        try:
            has_arrived = await request.connection.hand_over(parts, counts=page.counts_on_arrival)
            await self._fetcher.confirm(page, has_arrived=has_arrived)
        except Exception as error:  # noqa: BLE001 - the client has been answered
            status = self._api_error(request, error).status
        self._record(request, status)
        request.connection.next_request()

    def _answer_send(self, request: FastRequest, send_future: "asyncio.Future[int]") -> None:
        try:
            parts = _with_head(request, [write_number(request.headers.response_format, send_future.result())])
        except Exception as error:  # noqa: BLE001 - every error is answered
            self._refuse(request, error)
        else:
            self._record(request, HTTPStatus.OK)
            request.connection.answer(parts)

    def _refuse(self, request: FastRequest, error: Exception) -> None:
        api_error, headers = self._api_error(request, error), request.headers
        response = error_response(headers.response_format, response_head.headers_of(request.request_id), api_error)
        self._record(request, api_error.status)
        clock = request.connection.port.clock
        request.connection.answer([response_head.response_bytes(response, clock, headers.cross_origin)])

    def _api_error(self, request: FastRequest, error: Exception) -> ApiError:
        with structlog.contextvars.bound_contextvars(request_id=request.request_id):
            return self._pipeline.as_api_error(error, request.method, self._route)

    def _record(self, request: FastRequest, status: int) -> None:
        self._pipeline.record_response(request.method, self._route, int(status), request.began, request.request_id)


def _with_head(request: FastRequest, parts: list[bytes]) -> list[bytes]:
    """Return a response with status 200: head and ``parts`` of the body."""
    headers, clock = request.headers, request.connection.port.clock
    return response_head.ok_response(headers.response_format, request.request_id, parts, clock, headers.cross_origin)


def _start(tasks: set[asyncio.Task[None]], coroutine: Coroutine[Any, Any, None]) -> None:
    """Start a task, and keep a reference until it is done: the event loop does not."""
    task = asyncio.create_task(coroutine)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
