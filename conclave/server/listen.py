"""Listens for clients, and turns connections away before the process runs out of open files.

A process may have only a limited number of files open, and each connection is one. Without a reserve, a full process
could not open what it needs for itself. If no descriptor at all is free, libuv turns connections away with the help of
one that it keeps. If a thread takes that one meanwhile, the event loop spins.
"""

import asyncio
import os
import resource
import ssl
from functools import partial

from aiohttp import StreamReader, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage, StreamWriter
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import _ErrInfo
from aiohttp.web_request import BaseRequest
from multidict import CIMultiDict

from conclave import keys
from conclave.budget import Share
from conclave.errors import ApiError, BadRequestError
from conclave.logs import get_logger
from conclave.server import middleware
from conclave.server.fast_path import FastPath, Known
from conclave.steady_clock import SteadyClock
from conclave.wire.exchange import FORMAT, reply_error
from conclave.wire.handover import drain_fully, taken
from conclave.wire.negotiate import Format
from conclave.wire.ready import REQUEST_ID, tell_no_time, write

log = get_logger(__name__)

MOST_FILES = 65_536
"""The limit of open files is raised to at most 65,536. A thousand million, as on some systems, helps nobody."""

RESERVED_FILES = 64
"""Clients do not get 64 descriptors: the store, the operators' listener and the worker's pipes need them."""

MOST_OPERATORS = 32
"""The operators' listener has at most 32 connections, of the 64 descriptors above.

Whoever reaches it may connect without a token. Without a bound, silent connections there would turn clients away, and
leave the store none.
"""

LINGER_SECONDS = 2.0
"""A client whose request was refused before all of it had come may go on sending for 2 seconds."""

BACKLOG = 1024
"""At most 1,024 connections wait to be accepted. After a restart all streams come back at once."""

WARN_EVERY_SECONDS = 60.0

HEAD_SECONDS = 60.0
"""A head may take a minute, from its second piece on at the latest. What has come of it, up to 2 MB, is in memory."""

MOST_QUEUED = 2
"""Once 2 requests of a connection wait behind the one under way, nothing more is read from it.

The head of each may have a megabyte. aiohttp would let 32 wait, and take some 50 MB for them.
"""

_END = b"\r\n\r\n"

TRIED_IN_VAIN = 32
"""Once 32 requests of a connection in a row were parsed, one in 32 is looked at for the fast path.

To look costs something. Some clients ask for nothing but pages, and some proxies give each request a header of its own.
"""


def raise_file_limit() -> int:
    """Let this process have as many files open as the system allows, up to MOST_FILES; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_FILES
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


def for_clients(most_files: int) -> int:
    """Return the number of open files at which clients are turned away. ``most_files``: the process's limit."""
    return max(most_files - RESERVED_FILES, most_files // 2)


class Site(web.BaseSite):
    """Listens at an address. Closes a new connection at once if no descriptor can be spared for it."""

    def __init__(
        self,
        runner: web.BaseRunner,
        address: str,
        port: int,
        most_files: int,
        tls: ssl.SSLContext | None = None,
        fast_path: FastPath | None = None,
        most: int | None = None,
    ) -> None:
        """``most_files``: nobody is let in once the process has this many files open.

        ``fast_path``: answers requests whose heads are known; None: all are parsed. ``most``: so many connections at
        most; one that waits with nothing to answer makes room for a new one. None: any number.
        """
        super().__init__(runner, ssl_context=tls, backlog=BACKLOG)
        self._address = address
        self.port = port
        self._most_files = most_files
        self._fast_path = fast_path
        self._most = most
        self._clock = runner.app.get(keys.CLOCK) if isinstance(runner, web.AppRunner) else None
        self._open: list[Connection] = []
        self._warned_at = -WARN_EVERY_SECONDS

    @property
    def name(self) -> str:
        """The address as configured."""
        return f"{self._address} port {self.port}"

    async def start(self) -> None:
        """Begin to listen. Raises OSError."""
        await super().start()
        self._server = self._listening = await asyncio.get_running_loop().create_server(
            self._let_in, self._address, self.port, ssl=self._ssl_context, backlog=self._backlog
        )

    async def listen(self) -> str:
        """Begin to listen, and return the URL. Raises OSError."""
        await self.start()
        host, port = self._listening.sockets[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self._ssl_context else 'http'}://{shown}:{port}"

    def _let_in(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        if server is not None and self._is_room() and self._make_room():
            # Not server(): its connections would answer what is not HTTP with pages of aiohttp.
            connection = Connection(server, self._fast_path, self._clock)
            if self._most is not None:
                self._open.append(connection)
            return connection
        now = asyncio.get_running_loop().time()
        if now >= self._warned_at + WARN_EVERY_SECONDS:
            self._warned_at = now
            log.warning("too_many_connections", open_files=self._most_files)
        return _Refusal()

    def _is_room(self) -> bool:
        """Tell whether few enough files are open. The system always gives out the least free descriptor."""
        try:
            least = os.open(os.devnull, os.O_RDONLY)
        except OSError:
            return False
        os.close(least)
        return least < self._most_files

    def _make_room(self) -> bool:
        """Tell whether one more connection may be. The first one that asks for nothing ends for it, if it has to."""
        if self._most is None:
            return True
        self._open = [each for each in self._open if not each.has_ended()]
        if len(self._open) < self._most:
            return True
        idle = next((each for each in self._open if each.asks_for_nothing()), None)
        if idle is None:
            return False
        self._open.remove(idle)
        idle.force_close()
        return True


class Connection(web.RequestHandler):
    """A connection whose answers are all this server's own, never a page of aiohttp.

    aiohttp itself refuses requests that are not HTTP, and an Expect that nobody knows. These never reach the
    application and its middleware. Compressed bodies stay as they were sent: see wire.packed.
    """

    __slots__ = (
        *("_clock", "_due", "_fast_path", "_head_due", "_held", "_in_vain", "_is_ahead", "_is_between"),
        *("_is_refused", "_lost", "_waiting_for_client"),
    )

    def __init__(self, server: web.Server, fast_path: FastPath | None = None, clock: SteadyClock | None = None) -> None:
        """``fast_path``: see ``Site``. ``clock``: answers tell no time while it is in doubt."""
        super().__init__(server, loop=asyncio.get_running_loop(), auto_decompress=False)
        self._max_msg_queue_size, self._msg_queue_resume_size = MOST_QUEUED, MOST_QUEUED // 2
        self._fast_path = fast_path
        self._clock = clock
        self._is_between = True
        """Whether all that came so far was whole requests, as far as is known: the next byte begins another."""
        self._is_ahead = False
        """Whether a request on the fast path is not answered yet."""
        self._due: tuple[FastPath, Known, bytes] | None = None
        """Such a request, and as it came, until ``_take`` has it."""
        self._held = b""
        self._head_due: asyncio.TimerHandle | None = None
        """Ends the wait for the rest of a head."""
        self._waiting_for_client: asyncio.Task[None] | None = None
        self._in_vain = 0
        """How many requests were parsed since the last one that took the fast path."""
        self._is_refused = False
        """Whether what came was not HTTP, or failed outside the application."""
        self._lost: asyncio.Future[None] | None = None
        """Done once nobody need wait for the end of the connection any longer: it is lost, or the server stops."""
        self._request_factory = self._request_of

    def data_received(self, data: bytes) -> None:
        """Take bytes: a request for the fast path, or else what aiohttp is to parse."""
        if not data:  # aiohttp itself has what waits parsed
            self._parse(data)
        elif self._is_ahead:
            self._held += data
            self._pause_transport_reading()
        elif self._fast_path and self._is_between and self._is_idle() and (known := self._fast_path.known(data)):
            self._is_ahead = self._request_in_progress = True  # a stop waits for it
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
            self._due = self._fast_path, known, data
            self._loop.call_soon(self._take)
        else:
            self._take_the_long_way(data)

    def _take_the_long_way(self, data: bytes) -> None:
        has_none = not self._messages
        self._parse(data)
        self._in_vain += 1
        is_tried = self._in_vain <= TRIED_IN_VAIN or self._in_vain % TRIED_IN_VAIN == 0
        self._is_between = is_tried and has_none and len(self._messages) == 1 and self._learn(data)

    def _learn(self, data: bytes) -> bool:
        """Have the head of the one request that waits known from now on; return whether it is."""
        return self._fast_path is not None and self._fast_path.learn(data, *self._messages[0])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless the connection had to make room for another one before it was there."""
        super().connection_made(transport)
        if self._force_close:
            transport.close()

    def has_ended(self) -> bool:
        """Tell whether the connection was there and is lost."""
        return self._manager is None

    def asks_for_nothing(self) -> bool:
        """Tell whether no request waits for its answer: none has come, or not all of its head, or all are answered."""
        return not self._messages and self._current_request is None

    def _is_idle(self) -> bool:
        """Tell whether all requests are answered, the client has all answers, and the connection stays open.

        aiohttp has no public name for it.
        """
        transport = self.transport
        if transport is None or self._close or self._force_close or self._messages:
            return False
        return self._waiter is not None and not self._waiter.done() and not transport.get_write_buffer_size()

    def close(self) -> None:
        """End the connection once what has come so far is answered: a stop calls it."""
        self._take()  # aiohttp parses nothing from here on
        self._end_linger()
        super().close()

    async def shutdown(self, timeout: float | None = 15.0) -> None:  # noqa: ASYNC109 - aiohttp's signature
        """End the connection as aiohttp does, and the wait for a client that has not taken its page."""
        await super().shutdown(timeout)
        if self._waiting_for_client:
            self._waiting_for_client.cancel()
            await asyncio.wait({self._waiting_for_client})

    def _take(self) -> None:
        """Have the request that is due take the fast path; if it cannot, the long way."""
        if not self._due:
            return
        (fast_path, known, data), self._due = self._due, None
        if not fast_path.take(known, self._answer_ahead):
            self._is_ahead = self._request_in_progress = False
            self._parse(data)  # as one whole request, as the one from which the head is known: nothing is to be learned
            self._in_vain += 1
            self._is_between = self._in_vain <= TRIED_IN_VAIN
            self._go_on()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Also drop a request that has not begun: aiohttp would begin it, fail, and log that."""
        handling = self._task_handler
        super().connection_lost(exc)
        self._end_wait_for_head()
        self._end_linger()
        if handling and not self._request_in_progress:
            handling.cancel()

    def _answer_ahead(self, answer: list[bytes], share: Share | None) -> None:
        """Send the answer to a request on the fast path. ``share``: the memory that it takes."""
        self._in_vain = 0
        transport = self.transport
        if transport and not transport.is_closing():
            write(transport, answer)
            if share and transport.get_write_buffer_size():
                share.hold(sum(map(len, answer)))
                drain_fully(transport)
                self._waiting_for_client = self._loop.create_task(self._wait_for_client(transport, share))
                return
        self._end_ahead(share)

    async def _wait_for_client(self, transport: asyncio.Transport, share: Share) -> None:
        """Wait until the system has taken a page, unless the client is too slow: see ``hand_over``."""
        try:
            await taken(self, self._drain_helper, transport)
        finally:
            self._end_ahead(share)

    def _end_ahead(self, share: Share | None) -> None:
        if share:
            share.close()
        self._is_ahead = self._request_in_progress = False
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._close and self.transport:
            self.transport.close()
        self._go_on()

    def _go_on(self) -> None:
        """Take what came after a request on the fast path, and let a stop go on that waits for it."""
        if self._handler_waiter and not self._handler_waiter.done():
            self._handler_waiter.set_result(None)
        if self._held:
            held, self._held = self._held, b""
            self._resume_transport_reading()
            self.data_received(held)

    def _request_of(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> BaseRequest:
        """Make a request of what was parsed. One whose body is in chunks is the last of its connection.

        Headers may follow on the last chunk. aiohttp's parser keeps the last of these, and puts it before the headers
        of the next request. If a proxy shares the connection between users, that would be somebody else's: with another
        token, say.
        """
        assert self._manager  # noqa: S101 - aiohttp makes no requests once it has gone
        if message.chunked:
            message = message._replace(should_close=True)
        if self._clock:
            # aiohttp tells the time in every head that has no Date. So each goes through here before it is written.
            writer = StreamWriter(self, self._loop, on_headers_sent=partial(self._tell_no_time, self._clock))
        return self._manager.request_factory(message, payload, protocol, writer, task)

    @staticmethod
    async def _tell_no_time(clock: SteadyClock, headers: CIMultiDict[str]) -> None:
        tell_no_time(headers, clock)

    def _parse(self, data: bytes) -> None:
        """Have aiohttp parse bytes. If they break a body off, the reader of that body gets the error, and answers.

        aiohttp would have the reader wait until the client goes, and would answer a second time after that. No public
        part of aiohttp tells that bytes were refused.
        """
        is_head, count = self._awaits_head(), self._request_count
        super().data_received(data)
        if self._request_count != count:
            self._end_wait_for_head()
            self._end_with_upgrade(data)
        elif is_head and not self._head_due and data.strip(b"\r\n"):  # empty lines may stand between requests
            self._head_due = self._loop.call_later(HEAD_SECONDS, self._give_up_head)
        if not (self._messages and isinstance(self._messages[-1][0], _ErrInfo)):
            return
        bodies = [body for _, body in self._messages]
        if self._current_request:
            bodies.append(self._current_request.content)
        unfinished = [body for body in bodies if not body.is_eof()]
        for body in unfinished:
            body.set_exception(web.RequestPayloadError("what follows is not HTTP"))
        if unfinished:
            self._messages.pop()

    def _end_with_upgrade(self, data: bytes) -> None:
        """Make a request that asks for another protocol the last of its connection, unless it is all of ``data``.

        Of a protocol that it does not know, aiohttp's parser drops what follows in the same piece: later requests would
        never be answered, and of one that is cut the rest would count as another.
        """
        message, body = self._messages[-1]
        if isinstance(message, RawRequestMessage) and message.upgrade and not self._upgraded:
            length = int(message.headers.get(hdrs.CONTENT_LENGTH, "0"))
            if not body.is_eof() or len(data) != data.find(_END) + len(_END) + length:
                self._messages[-1] = message._replace(should_close=True), body

    def _awaits_head(self) -> bool:
        """Tell whether the next bytes belong to a head; False where that is not known."""
        if self._messages or self._upgraded or self._close or self._force_close:
            return False
        if self._current_request:
            return self._current_request.content.is_eof()
        return self._waiter is not None and not self._waiter.done()

    def _end_wait_for_head(self) -> None:
        if self._head_due:
            self._head_due.cancel()
            self._head_due = None

    def _give_up_head(self) -> None:
        """Answer the request whose head does not come to its end, unless those before it are not answered yet."""
        self._head_due = None
        if self._messages or self._waiter is None or self._waiter.done():
            self._head_due = self._loop.call_later(HEAD_SECONDS, self._give_up_head)
            return
        self._messages.append((_ErrInfo(web.HTTPBadRequest.status_code, TimeoutError(), ""), EMPTY_PAYLOAD))
        self._waiter.set_result(None)

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
            response = self._answer(request, BadRequestError(_reason(exc)))
        else:
            log.error("request_failed", request_id=_id_of(request), exc_info=exc)
            response = self._answer(request, ApiError())
        response.force_close()
        self._is_refused = True
        return response

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send a response. A page of aiohttp is replaced by an error response that says the same."""
        if isinstance(resp, web.HTTPException):
            log.info("request_refused", status=resp.status, request_id=_id_of(request))
            resp = self._answer(request, middleware.from_aiohttp(resp))
        finished = await super().finish_response(request, resp, start_time)
        if self._is_refused:
            await self._drop_the_rest()
        return finished

    async def _drop_the_rest(self) -> None:
        """Take what the client still sends and drop it, for LINGER_SECONDS at most.

        It ends sooner if the client ends the connection, or the server stops. A connection that is closed while
        bytes wait there is reset, and its client loses the answer. TLS cannot end one direction alone: there it is left
        to chance.
        """
        transport = self.transport
        if self._close or transport is None or transport.is_closing() or not transport.can_write_eof():
            return
        self._close = True  # aiohttp parses nothing from here on
        transport.write_eof()
        self._resume_transport_reading()
        self._lost = self._loop.create_future()
        await asyncio.wait({self._lost}, timeout=LINGER_SECONDS)

    def _end_linger(self) -> None:
        if self._lost and not self._lost.done():
            self._lost.set_result(None)

    def _answer(self, request: BaseRequest, error: ApiError) -> web.Response:
        request[FORMAT] = Format.JSON
        return reply_error(request, error)


def _reason(error: BaseException | None) -> str:
    if isinstance(error, TimeoutError):
        return f"the head of the request has not arrived within {HEAD_SECONDS:g} seconds"
    return "the request is malformed, or its head is too long"


def _id_of(request: BaseRequest) -> str:
    """Return the id of a request. One that has not come to the application gets it here."""
    if REQUEST_ID not in request:
        request[REQUEST_ID] = middleware.new_request_id()
    return request[REQUEST_ID]


class _Refusal(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
