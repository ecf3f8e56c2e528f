"""A client's connection: built on aiohttp's, whose inner parts nothing else here touches but ``listen.py``.

Which ones, a test has in a list, and fails where aiohttp changes one. The version has a bound for the same reason.
"""

import asyncio
from functools import partial

from aiohttp import StreamReader, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage, StreamWriter
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import _ErrInfo
from aiohttp.web_request import BaseRequest
from multidict import CIMultiDict

from conclave.clock.steady import SteadyClock
from conclave.errors import ApiError, BadRequestError
from conclave.logs.setup import get_logger
from conclave.response_memory import Share
from conclave.server import middleware
from conclave.server.fast_path import LARGEST_BODY, Asked, FastPath
from conclave.server.plain import Cut, cut, fields_of
from conclave.wire.exchange import FORMAT, reply_error
from conclave.wire.handover import drain_fully, taken
from conclave.wire.negotiate import Format
from conclave.wire.ready import REQUEST_ID, tell_no_time, write

log = get_logger(__name__)

LINGER_SECONDS = 2.0
"""A client whose request was refused before all of it had come may go on sending for 2 seconds."""

HEAD_SECONDS = 60.0
"""A head may take a minute, from its second piece on at the latest. What has come of it, up to 2 MB, is in memory."""

MOST_QUEUED = 2
"""Once 2 requests of a connection wait behind the one under way, nothing more is read from it.

The head of each may have a megabyte. aiohttp would let 32 wait, and take some 50 MB for them.
"""

_END = b"\r\n\r\n"

TRIED_IN_VAIN = 32
"""Once 32 requests for messages in a row could not take the fast path, one request in 32 is looked at for it.

To look costs something, and some clients ask for nothing but large pages.
"""


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
        self._due: tuple[FastPath, Asked, bytes] | None = None
        """Such a request, and as it came, until ``_take`` has it."""
        self._held = b""
        self._head_due: asyncio.TimerHandle | None = None
        """Ends the wait for the rest of a head."""
        self._waiting_for_client: asyncio.Task[None] | None = None
        self._in_vain = 0
        """How many requests for messages were parsed since the last one that took the fast path."""
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
        elif self._fast_path and self._is_worth_a_look():
            self._look(self._fast_path, data)
        else:
            self._take_the_long_way(data)

    def _is_worth_a_look(self) -> bool:
        if self._in_vain > TRIED_IN_VAIN and not self._is_between:
            self._in_vain += 1
            return self._in_vain % TRIED_IN_VAIN == 0 and not self._messages
        return not self._messages

    def _look(self, fast_path: FastPath, data: bytes) -> None:
        """Have the fast path answer what came, if it is a plain request for messages; else have it parsed."""
        found = cut(data, LARGEST_BODY)
        if found and self._is_between and self._is_idle() and (asked := fast_path.asked(found)):
            self._is_ahead = self._request_in_progress = True  # a stop waits for it
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
            self._due = fast_path, asked, data
            self._loop.call_soon(self._take)
        else:
            self._parse(data)
            self._is_between = found is not None and self._is_all(found, data)

    def _is_all(self, found: Cut, data: bytes) -> bool:
        """Tell whether the parser has taken ``data`` for the same one request, with nothing of what came before it."""
        if len(self._messages) != 1:
            return False
        message, body = self._messages[0]
        if not isinstance(message, RawRequestMessage) or not body.is_eof() or not fields_of(found):
            return False
        return self._is_between or _rewritten(message) + found.body == data

    def _take_the_long_way(self, data: bytes) -> None:
        self._is_between = False
        self._parse(data)

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
        (fast_path, asked, data), self._due = self._due, None
        if not fast_path.take(asked, self._answer_ahead):
            self._is_ahead = self._request_in_progress = False
            self._parse(data)  # as one whole request: nothing is to be learned
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


def _rewritten(message: RawRequestMessage) -> bytes:
    """Return the head that says what the parser understood, written as heads usually are."""
    fields = b"".join(b"%b: %b\r\n" % each for each in message.raw_headers)
    return f"{message.method} {message.path} HTTP/1.1\r\n".encode("utf-8", "surrogateescape") + fields + b"\r\n"


def _reason(error: BaseException | None) -> str:
    if isinstance(error, TimeoutError):
        return f"the head of the request has not arrived within {HEAD_SECONDS:g} seconds"
    return "the request is malformed, or its head is too long"


def _id_of(request: BaseRequest) -> str:
    """Return the id of a request. One that has not come to the application gets it here."""
    if REQUEST_ID not in request:
        request[REQUEST_ID] = middleware.new_request_id()
    return request[REQUEST_ID]
