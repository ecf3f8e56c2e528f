"""What stands behind the client port: aiohttp, which answers all but the busiest requests.

It gets the bytes of one request at a time, and writes to a transport that is its connection's. So the connection learns
what becomes of each request without any inner part of aiohttp: it is told of the request when aiohttp makes it, and of
the answer when its end is written. A test pins that.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

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
from conclave.wire.cross_origin import CrossOrigin
from conclave.wire.exchange import FORMAT, reply_error
from conclave.wire.handover import BARE_TRANSPORT, LINE
from conclave.wire.negotiate import Format
from conclave.wire.ready import REQUEST_ID, tell_no_time, write_over_tls

if TYPE_CHECKING:
    from conclave.server.connection import Connection

log = get_logger(__name__)

MALFORMED = "the request is malformed, or its head is too long"

_UNREAD = "UNKNOWN"
"""The method that aiohttp makes up for what it could not read, with HTTP/1.0. There is no request with it: llhttp does
not know it.
"""

_NEVER_SECONDS = 365 * 24 * 3600.0
"""aiohttp ends no silent connection: it does not know what the connection answers without it, nor sees half a head."""


class Behind(web.RequestHandler):
    """aiohttp's side of a connection. Its answers are all this server's own, never a page of aiohttp.

    aiohttp itself refuses some requests, and an Expect that it does not know. These never reach the application and its
    middleware. Compressed bodies stay as they were sent: see wire.decompression.
    """

    __slots__ = ("connection",)

    def __init__(self, server: web.Server, connection: "Connection") -> None:
        """``server``: of a runner that was set up, and has ``Making`` as its factory of requests."""
        super().__init__(
            server, loop=asyncio.get_running_loop(), auto_decompress=False, keepalive_timeout=_NEVER_SECONDS
        )
        self.connection = connection

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer requests that are not HTTP, and failures outside the application. Then end the connection.

        Neither the answer nor the log repeats what was sent.
        """
        if isinstance(exc, ConnectionError):
            raise exc  # the client is gone, as was logged
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        if status == web.HTTPBadRequest.status_code:
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
        """Send a response. A page of aiohttp is replaced by an error response that says the same."""
        if isinstance(resp, web.HTTPException):
            log.info("request_refused", status=resp.status, request_id=_id_of(request))
            resp = _answer(request, middleware.from_aiohttp(resp))
        finished = await super().finish_response(request, resp, start_time)
        if tokens.CALLER in request:
            self.connection.known_as(request[tokens.CALLER].user_id)
        self.connection.answered(stays_open=bool(finished[0].keep_alive))
        return finished


class Making:
    """Makes aiohttp's requests, and tells their connections. It takes the place of a server's own factory."""

    def __init__(self, server: web.Server, clock: Clock, cross_origin: CrossOrigin) -> None:
        """``clock``: answers tell no time while it is in doubt. ``cross_origin``: what web pages may read."""
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
        if isinstance(protocol, Behind) and protocol.connection.begun(payload):
            message = message._replace(should_close=True)
        if message.method == _UNREAD:
            message = message._replace(version=HttpVersion11)
        # aiohttp tells the time in every head that has no Date. So each goes through here before it is written.
        complete = partial(self._complete, message.headers.get(hdrs.ORIGIN))
        writer = StreamWriter(protocol, asyncio.get_running_loop(), on_headers_sent=complete)
        return self._make(message, payload, protocol, writer, task)

    async def _complete(self, origin: str | None, headers: CIMultiDict[str]) -> None:
        """Complete the headers of an answer, whatever made them. ``origin``: of the page that asks, if it is one."""
        tell_no_time(headers, self._clock)
        self._cross_origin.add_to(headers, origin)


class Outlet:
    """The transport of aiohttp's side: the connection's own, but for when to read and when to close."""

    __slots__ = ("_bare", "_connection", "get_write_buffer_size", "is_closing", "write", "writelines")

    def __init__(self, connection: "Connection", bare: asyncio.Transport) -> None:
        """``bare``: the connection's own."""
        self._connection, self._bare = connection, bare
        self.write, self.writelines = bare.write, bare.writelines
        self.is_closing, self.get_write_buffer_size = bare.is_closing, bare.get_write_buffer_size
        if bare.get_extra_info("sslcontext"):
            self.write, self.writelines = lambda data: write_over_tls(bare, [data]), partial(write_over_tls, bare)

    def close(self) -> None:
        """End the connection."""
        self._connection.end()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another protocol have the connection."""
        self._connection.give_up(protocol)

    def pause_reading(self) -> None:
        """Have nothing more come."""
        self._connection.pause_for_behind()

    def resume_reading(self) -> None:
        """Have more come."""
        self._connection.resume_for_behind()

    def __getattr__(self, name: str) -> Any:
        """All else is that of the connection's own."""
        return getattr(self._bare, name)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return a fact about the connection: of asyncio's, or LINE or BARE_TRANSPORT."""
        if name == LINE:
            return self._connection
        return self._bare if name == BARE_TRANSPORT else self._bare.get_extra_info(name, default)


def _answer(request: BaseRequest, error: ApiError) -> web.Response:
    request[FORMAT] = Format.JSON
    return reply_error(request, error)


def _id_of(request: BaseRequest) -> str:
    """Return the id of a request. One that has not come to the application gets it here."""
    if REQUEST_ID not in request:
        request[REQUEST_ID] = middleware.new_request_id()
    return request[REQUEST_ID]
