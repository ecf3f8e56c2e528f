"""aiohttp's side of a connection: it answers all requests except those of the fast path.

It gets the bytes of one request at a time, and writes to a wrapper of the connection's transport. The request factory
reports the start of a request, the overridden ``finish_response`` its end. A test checks that aiohttp does nothing
after that. No private API of aiohttp is used.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from aiohttp import StreamReader, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11, RawRequestMessage, StreamWriter
from aiohttp.web_request import BaseRequest
from multidict import CIMultiDict

from conclave.auth import tokens
from conclave.clock import Clock
from conclave.errors import ApiError, BadRequestError
from conclave.logs.setup import get_logger
from conclave.server import middleware
from conclave.server.client_port.framing import MalformedRequestError, RequestHead, RequestScanner
from conclave.server.client_port.responding import RespondingConnection
from conclave.wire.exchange import FORMAT, reply_error
from conclave.wire.formats import Format
from conclave.wire.response_head import REQUEST_ID, CrossOrigin, omit_date

log = get_logger(__name__)

MALFORMED = "the request is malformed, or its head is too long"

_UNPARSED = "UNKNOWN"
"""The method that aiohttp reports, with HTTP/1.0, for a request that it could not parse. llhttp rejects it."""

_NEVER_SECONDS = 365 * 24 * 3600.0
"""aiohttp must not close idle connections: it sees neither incomplete heads nor requests of the fast path."""


class AiohttpHandler(web.RequestHandler):
    """Answers the requests of a connection by aiohttp, one at a time. Error pages of aiohttp are replaced.

    aiohttp rejects some requests, and an unknown Expect, without calling the application. Compressed bodies are passed
    on unchanged, see ``wire.exchange.unpack``.
    """

    __slots__ = ("_connection", "_has_begun", "_is_answered", "_is_last", "_missing_bytes", "_reader", "_scanner")

    def __init__(self, server: web.Server, connection: RespondingConnection, transport: asyncio.Transport) -> None:
        """``server``: creates requests by ``create_request``. ``transport``: a wrapper of the connection's."""
        super().__init__(
            server, loop=asyncio.get_running_loop(), auto_decompress=False, keepalive_timeout=_NEVER_SECONDS
        )
        self._connection = connection
        self._missing_bytes = 0  # bytes of a body with a length that have not arrived
        self._scanner: RequestScanner | None = None  # follows a body in chunks
        self._reader: StreamReader | None = None  # gets the body of the request in progress
        self._has_begun, self._is_answered, self._is_last = True, False, False
        self.connection_made(transport)

    def take(self, data: bytes, head: RequestHead, size: int) -> bytes:
        """Start a request of ``size`` bytes, or chunked. Return the following bytes. Raises MalformedRequestError."""
        if head.length is None:
            # aiohttp would add the trailers of the last chunk to the headers of the next request. A proxy may share a
            # connection between users, so they could be another user's token.
            self._scanner = RequestScanner()
            size = self._scanner.feed(data)
        self._missing_bytes = max(0, size - len(data))
        self._is_last = head.length is None or (head.upgrades and self._missing_bytes > 0)
        self._has_begun = self._is_answered = False
        self.data_received(data[:size])
        return data[size:]

    @property
    def expects_body(self) -> bool:
        """Whether a part of the request's body has not arrived yet."""
        return self._missing_bytes > 0 or (self._scanner is not None and not self._scanner.is_complete)

    @property
    def has_whole_request(self) -> bool:
        """Whether the request can be answered. aiohttp reads no body after a head that it rejects."""
        return not self.expects_body or (self._reader is not None and self._reader.is_eof())

    def take_body(self, data: bytes) -> bytes:
        """Pass on a part of the body. Return the bytes after the body."""
        try:
            if self._scanner:
                self._missing_bytes = self._scanner.feed(data)
        except MalformedRequestError:
            self._scanner = None
            self._break_body()
            return b""
        size = min(self._missing_bytes, len(data))
        self._missing_bytes -= size
        self.data_received(data[:size])
        self._finish_if_done()
        return data[size:]

    def _break_body(self) -> None:
        """Make reading the body fail, so that the handler answers.

        aiohttp would block until the client disconnects, and then answer a second time.
        """
        self._connection.is_refused = True
        if self._reader:
            self._reader.set_exception(web.RequestPayloadError("the chunks are malformed"))

    def begin(self, body: StreamReader) -> bool:
        """Record that aiohttp starts the request. Return whether the connection ends after it."""
        self._reader, self._has_begun = body, True
        if self._connection.is_refused:  # the body is broken already
            self._break_body()
        return self._is_last

    def _finish_if_done(self) -> None:
        if self._is_answered and not self.expects_body:
            self._is_answered = False
            # Not at once: aiohttp has more to do in the same step.
            asyncio.get_running_loop().call_soon(self._connection.next_request)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Cancel the request in progress. If it has not started, start it first: otherwise aiohttp logs an error."""
        if self._has_begun:
            super().connection_lost(exc)
        else:
            asyncio.get_running_loop().call_soon(super().connection_lost, exc)

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer a malformed request, or an error outside the application, and end the connection."""
        if isinstance(exc, ConnectionError):
            raise exc  # the client is gone; this is logged already
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        # aiohttp quotes an unknown Expect in an error page, and fails if it is not UTF-8.
        is_odd_expect = isinstance(exc, UnicodeEncodeError) and hdrs.EXPECT in request.headers
        if status == web.HTTPBadRequest.status_code or is_odd_expect:
            # Neither the answer nor the log contains bytes of it.
            log.info("request_malformed", reason=type(exc).__name__, request_id=_id_of(request))
            response = _answer(request, BadRequestError(MALFORMED))
        else:
            log.error("request_failed", request_id=_id_of(request), exc_info=exc)
            response = _answer(request, ApiError())
        response.force_close()
        self._connection.is_refused = True
        return response

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send a response. An error page of aiohttp is replaced by an error response."""
        if isinstance(resp, web.HTTPException):
            log.info("request_refused", status=resp.status, request_id=_id_of(request))
            resp = _answer(request, middleware.convert_aiohttp_error(resp))
        result = await super().finish_response(request, resp, start_time)
        if tokens.CALLER in request:
            self._connection.set_account(request[tokens.CALLER].user_id)
        self._reader, self._is_answered = None, bool(result[0].keep_alive)  # else aiohttp closes the connection
        self._finish_if_done()
        return result


def create_request(
    make: Callable[..., BaseRequest],
    clock: Clock,
    cross_origin: CrossOrigin,
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    _: AbstractStreamWriter,
    task: "asyncio.Task[None]",
) -> BaseRequest:
    """Create aiohttp's request from a parsed message, and notify the ``AiohttpHandler``.

    ``make``: the server's own factory, which this function replaces. ``clock``: responses have no Date while it is in
    doubt. ``cross_origin``: adds the CORS headers.
    """
    if isinstance(protocol, AiohttpHandler) and protocol.begin(payload):
        message = message._replace(should_close=True)
    if message.method == _UNPARSED:
        message = message._replace(version=HttpVersion11)
    # aiohttp adds a Date to every head without one, so heads are completed before they are written.
    complete = partial(_complete, message.headers.get(hdrs.ORIGIN), clock, cross_origin)
    writer = StreamWriter(protocol, asyncio.get_running_loop(), on_headers_sent=complete)
    return make(message, payload, protocol, writer, task)


async def _complete(origin: str | None, clock: Clock, cross_origin: CrossOrigin, headers: CIMultiDict[str]) -> None:
    """Complete the headers of a response. ``origin``: the origin of the requesting page, if any."""
    omit_date(headers, clock)
    cross_origin.add_to(headers, origin)


def _answer(request: BaseRequest, error: ApiError) -> web.Response:
    request[FORMAT] = Format.JSON
    return reply_error(request, error)


def _id_of(request: BaseRequest) -> str:
    """Return the id of a request; assign one if it did not reach the application."""
    if REQUEST_ID not in request:
        request[REQUEST_ID] = middleware.new_request_id()
    return request[REQUEST_ID]
