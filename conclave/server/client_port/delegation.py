"""aiohttp's side of a connection: it answers all requests but those of the fast path.

It gets the bytes of one request at a time, and writes to a transport in front of the connection's own. The request
factory reports when aiohttp begins a request, and the overridden ``finish_response`` when the answer is written. That
nothing follows it is a habit of aiohttp, which a test pins. Nothing private of aiohttp is used.
"""

import asyncio
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
"""The method that aiohttp makes up, with HTTP/1.0, for what it could not parse. llhttp accepts no request with it."""

_NEVER_SECONDS = 365 * 24 * 3600.0
"""aiohttp must not close idle connections: it does not know of half a head, nor of what the fast path answers."""


class AiohttpHandler(web.RequestHandler):
    """Has aiohttp answer the requests of a connection, one at a time. No response is a page of aiohttp's own.

    aiohttp rejects some requests, and an Expect that it does not know, without the application and its middleware.
    Compressed bodies stay as they were sent: see ``wire.request_body``.
    """

    __slots__ = (
        *("_has_begun", "_is_answered", "_is_body_broken", "_is_last"),
        *("_missing", "_reader", "_scanner", "connection"),
    )

    def __init__(self, server: web.Server, connection: RespondingConnection, transport: asyncio.Transport) -> None:
        """``server``: of a runner, with a ``RequestFactory``. ``transport``: in front of the connection's own."""
        super().__init__(
            server, loop=asyncio.get_running_loop(), auto_decompress=False, keepalive_timeout=_NEVER_SECONDS
        )
        self.connection = connection
        self._missing = 0  # bytes of a body with a length that have not arrived
        self._scanner: RequestScanner | None = None  # follows a body in chunks until it is complete
        self._reader: StreamReader | None = None  # gets the body of the request in progress
        self._has_begun, self._is_answered, self._is_body_broken, self._is_last = True, False, False, False
        self.connection_made(transport)

    def take(self, data: bytes, head: RequestHead, size: int) -> bytes:
        """Start a request of ``size`` bytes, if it has no chunks. Return what follows it. Raises MalformedError."""
        if head.length is None:
            # aiohttp would put headers behind the last chunk before those of the next request. On a connection that a
            # proxy shares between users, these could be another user's: a token, for one.
            scanner = RequestScanner()
            size = scanner.feed(data)
            self._scanner = None if scanner.is_complete else scanner
        self._missing = max(0, size - len(data))
        self._is_last = head.length is None or head.is_tunnel or (head.upgrades and self._missing > 0)
        self._has_begun = self._is_answered = self._is_body_broken = False
        self.data_received(data[:size])
        return data[size:]

    @property
    def expects_body(self) -> bool:
        """Whether a part of the request's body has not arrived."""
        return self._missing > 0 or self._scanner is not None

    @property
    def has_whole_request(self) -> bool:
        """Whether no more is needed for the answer. aiohttp reads no body of a head that it rejects."""
        return not self.expects_body or (self._reader is not None and self._reader.is_eof())

    def take_body(self, data: bytes) -> bytes:
        """Pass on a part of the body. Return what follows the body."""
        try:
            if self._scanner:
                self._missing = self._scanner.feed(data)
                self._scanner = None if self._scanner.is_complete else self._scanner
        except MalformedRequestError:
            self._scanner = None
            self._break_body()
            return b""
        size = min(self._missing, len(data))
        self._missing -= size
        self.data_received(data[:size])
        self._go_on_if_done()
        return data[size:]

    def _break_body(self) -> None:
        """Make the reader of the body fail, so that the handler answers.

        aiohttp would let it wait until the client is gone, and answer a second time after that.
        """
        self._is_body_broken = self.connection.is_refused = True
        if self._reader:
            self._reader.set_exception(web.RequestPayloadError("the chunks are malformed"))

    def begin(self, body: StreamReader) -> bool:
        """Note that aiohttp begins the request. Return whether it is the last of the connection."""
        self._reader, self._has_begun = body, True
        if self._is_body_broken:
            self._break_body()
        return self._is_last

    def finish(self, *, stays_open: bool) -> None:
        """Note that the answer is written. Unless ``stays_open``, aiohttp closes the connection."""
        self._reader, self._is_answered = None, stays_open
        self._go_on_if_done()

    def _go_on_if_done(self) -> None:
        if self._is_answered and not self.expects_body:
            self._is_answered = False
            asyncio.get_running_loop().call_soon(self.connection.go_on)  # aiohttp has more to do in the same step

    def connection_lost(self, exc: BaseException | None) -> None:
        """End what is in progress. A request that has not begun begins first: aiohttp would fail, and log that."""
        if self._has_begun:
            super().connection_lost(exc)
        else:
            asyncio.get_running_loop().call_soon(super().connection_lost, exc)

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer a request that is not HTTP, or a failure outside the application. Then end the connection."""
        if isinstance(exc, ConnectionError):
            raise exc  # the client is gone, as was logged
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        if status == web.HTTPBadRequest.status_code:  # neither the answer nor the log repeats what was sent
            log.info("request_malformed", reason=type(exc).__name__, request_id=_id_of(request))
            response = _answer(request, BadRequestError(MALFORMED))
        else:
            log.error("request_failed", request_id=_id_of(request), exc_info=exc)
            response = _answer(request, ApiError())
        response.force_close()
        self.connection.is_refused = True
        return response

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send a response. A page of aiohttp is replaced by an error response with the same meaning."""
        if isinstance(resp, web.HTTPException):
            log.info("request_refused", status=resp.status, request_id=_id_of(request))
            resp = _answer(request, middleware.convert_aiohttp_error(resp))
        finished = await super().finish_response(request, resp, start_time)
        if tokens.CALLER in request:
            self.connection.note_account(request[tokens.CALLER].user_id)
        self.finish(stays_open=bool(finished[0].keep_alive))
        return finished


class RequestFactory:
    """Makes aiohttp's requests, and notifies their handlers. It takes the place of a server's own factory."""

    def __init__(self, server: web.Server, clock: Clock, cross_origin: CrossOrigin) -> None:
        """``clock``: responses have no time while it is in doubt. ``cross_origin``: what web pages may read."""
        self._make = server.request_factory
        self._clock = clock
        self._cross_origin = cross_origin

    def __call__(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> BaseRequest:
        """Make a request of what was parsed."""
        if isinstance(protocol, AiohttpHandler) and protocol.begin(payload):
            message = message._replace(should_close=True)
        if message.method == _UNPARSED:
            message = message._replace(version=HttpVersion11)
        # aiohttp adds the time to every head that has no Date, so each is completed here before it is written.
        complete = partial(self._complete, message.headers.get(hdrs.ORIGIN))
        writer = StreamWriter(protocol, asyncio.get_running_loop(), on_headers_sent=complete)
        return self._make(message, payload, protocol, writer, task)

    async def _complete(self, origin: str | None, headers: CIMultiDict[str]) -> None:
        """Complete the headers of a response. ``origin``: that of the page that sent the request, if any."""
        omit_date(headers, self._clock)
        self._cross_origin.add_to(headers, origin)


def _answer(request: BaseRequest, error: ApiError) -> web.Response:
    request[FORMAT] = Format.JSON
    return reply_error(request, error)


def _id_of(request: BaseRequest) -> str:
    """Return the id of a request. One that did not reach the application gets it here."""
    if REQUEST_ID not in request:
        request[REQUEST_ID] = middleware.new_request_id()
    return request[REQUEST_ID]
