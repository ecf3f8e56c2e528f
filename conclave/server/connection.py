"""A client's connection: it takes requests apart, answers the busiest at once, and hands all others to aiohttp.

Requests are taken one after the other. What comes behind one that is not answered is held, and nothing more is read.
"""

import asyncio
import socket
from typing import TYPE_CHECKING, cast

from aiohttp import StreamReader, web

from conclave.errors import ApiError, BadRequestError, UnsupportedCodingError
from conclave.logs.setup import get_logger
from conclave.server import framing
from conclave.server.behind import MALFORMED, Behind, Outlet
from conclave.server.busiest import Asked
from conclave.server.framing import MalformedError, UnknownCodingError
from conclave.server.middleware import new_request_id
from conclave.server.room import Standing
from conclave.wire import acknowledgement, ready
from conclave.wire.acknowledgement import Acknowledgement
from conclave.wire.exchange import answer_error
from conclave.wire.handover import drain_fully, hold_back, taken
from conclave.wire.negotiate import Format
from conclave.wire.pace import SMALL_BYTES

if TYPE_CHECKING:
    from conclave.server.listen import Site

log = get_logger(__name__)

READ_BYTES = 32 * 1024
"""At most 32 KiB are read at a time: so much may wait behind a request under way."""

HEAD_SECONDS = 60.0
"""A head may take a minute, from its first byte."""

LINGER_SECONDS = 2.0
"""A client whose request was refused before all of it had come may go on sending for 2 seconds."""

PLACED_SECONDS = 0.1
"""Connections that carry authenticated requests keep their place among the idle ones for a tenth of a second."""

FREE, AHEAD, BEHIND, OVER = range(4)
"""The states of a connection. No request is under way, and what has come of a head is held; one of the busiest is being
answered, before aiohttp; aiohttp has a request, and gets its body as it comes; no request is taken any more.
"""

_BUFFER = memoryview(bytearray(READ_BYTES))
"""What is read into, for all connections: each copies what it got before anything else happens."""


class _Between(asyncio.BufferedProtocol):
    """Stands between a connection that is given up and its successor.

    uvloop keeps the methods of the last protocol that gave it a buffer, and with them that protocol. These belong to
    none.
    """

    @staticmethod
    def get_buffer(_sizehint: int) -> memoryview:
        """Return a buffer: it gets nothing."""
        return _BUFFER

    @staticmethod
    def buffer_updated(_nbytes: int) -> None:
        """Hear of nothing."""


_BETWEEN = _Between()


class Connection(asyncio.BufferedProtocol):
    """A connection to a client."""

    __slots__ = (
        *("_asked", "_awaited", "_behind", "_body", "_has_begun", "_held", "_is_answered", "_is_broken", "_is_last"),
        *("_is_paused", "_left", "_loop", "_out", "_pauses_for_behind", "_placed_at", "_site", "_task", "_timer"),
        *("_watch", "_watched", "account", "address", "beginning", "below", "free_since", "has_asked"),
        *("is_half_closed", "is_refused", "place", "state", "transport"),
    )

    def __init__(self, site: "Site", address: str) -> None:
        """``site``: where it came in. ``address``: where from, as ``addresses.origin`` tells."""
        self._site = site
        self.address = address
        self.account: bytes | None = None
        """Whose the last authenticated request was."""
        self.has_asked = False
        """Whether the whole head of a request has come."""
        self.place = Standing.SILENT
        """The standing that it had when it last got its place among the idle ones, at ``_placed_at``."""
        self._placed_at = 0.0
        self.beginning: asyncio.Task[None] | None = None
        """Makes the transport, after the handshake if there is one. None once it is there."""
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.below: asyncio.Transport | None = None
        """The connection's own transport, if that is not ``transport``, but one below a TLS layer."""
        self.state = FREE
        self.free_since = self._loop.time()
        self.is_half_closed = False
        """Whether the client has said that it sends no more."""
        self.is_refused = False
        """Whether something that came was no request, as the client was told."""
        self._held = b""
        self._asked: tuple[Asked, bytes, int] | None = None
        """A request to be answered before aiohttp, as it came, and where its body begins."""
        self._behind: Behind | None = None
        self._body: StreamReader | None = None
        """That of the request that aiohttp has, once it has begun."""
        self._left = 0
        """How many bytes of it have not come yet, if it has a length."""
        self._watch: framing.Watch | None = None
        """Follows a head that is not all there, up to ``_watched`` bytes; or a body in chunks."""
        self._watched = 0
        self._has_begun = self._is_answered = self._is_broken = self._is_last = False
        self._is_paused = self._pauses_for_behind = False
        self._out: asyncio.Future[None] | None = None
        """Set while writing is paused. Done once it goes on, or never will."""
        self._awaited: Acknowledgement | None = None
        """Set while a request is answered whose answer counts as fetched once the client's system has acknowledged it.
        """
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless the server stops."""
        self.transport = transport  # type: ignore[assignment] # uvloop's only look like asyncio's
        self.beginning = None
        if end := transport.get_extra_info("socket"):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._site.is_stopping:
            transport.close()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way on it."""
        return self.state in (FREE, OVER)

    @property
    def standing(self) -> Standing:
        """What it was used for."""
        if self.state == OVER or not self.has_asked:
            return Standing.SILENT
        return Standing.STRANGER if self.account is None else Standing.KNOWN

    @property
    def owner(self) -> bytes | str:
        """The account that uses it, or the address."""
        return self.address if self.account is None else self.account

    def known_as(self, account: bytes) -> None:
        """Note that a request on it was authenticated."""
        if self.account is None:
            self._site.room.know(self)
        self.account = account

    def drop(self) -> None:
        """Close it at once, also if it is not there yet."""
        if self.transport:
            self.transport.abort()
        elif self.beginning:
            self.beginning.cancel()

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return where to write what comes."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Take what came."""
        data = bytes(_BUFFER[:nbytes])
        if self.state == FREE:
            self._take_apart(self._held + data if self._held else data)
        elif self.state == BEHIND and (self._left or self._watch):
            self._hand_on_body(data)
        elif self.state != OVER:
            self._held += data
            if self._awaited:
                self._awaited.look()  # a client's next request has the acknowledgement of the answer before
            self._read_or_pause()

    def _take_apart(self, data: bytes) -> None:
        """Take the first request of what came, and hold the rest. Only for a connection that is free."""
        if data[0] in b"\r\n":  # empty lines may stand between requests
            data = data.lstrip(b"\r\n")
        end = data.find(framing.END) + len(framing.END)
        try:
            if end < len(framing.END):
                self._wait_for_head(data)
                return
            if self._held:
                self._end_wait_for_head()
            self.has_asked = True
            busiest = self._site.busiest
            head = busiest.read_head(data[:end]) if busiest else framing.measure(data[:end])
            whole = end + (head.length or 0)
            if isinstance(head, framing.Head):
                self._hand_over(data, whole, head)
            elif len(data) < whole:
                self._hand_over(data, whole, framing.Head(head.length, {}))
            else:
                self.state, self._asked, self._held = AHEAD, (head, data[:whole], end), data[whole:]
                self._loop.call_soon(self._begin)
        except UnknownCodingError as error:
            self._refuse(error, UnsupportedCodingError())
        except MalformedError as error:
            self._refuse(error, BadRequestError(MALFORMED))
        finally:
            if self._held or self._is_paused:
                self._read_or_pause()

    def _wait_for_head(self, data: bytes) -> None:
        """Hold a part of a head, or nothing. Raises MalformedError as soon as it cannot become one."""
        self._held = data
        if not data:
            return
        if not self._watch:
            self._watch, self._watched = framing.Watch(), 0
            self._timer = self._loop.call_later(HEAD_SECONDS, self._give_up_head)
        if len(data) > framing.MOST_HEAD:
            raise MalformedError("too long")
        self._watch.feed(data[self._watched :])
        self._watched = len(data)

    def _end_wait_for_head(self) -> None:
        self._watch, self._held = None, b""
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _give_up_head(self) -> None:
        text = f"the head of the request has not arrived within {HEAD_SECONDS:g} seconds"
        self._refuse(TimeoutError(), BadRequestError(text))

    def eof_received(self) -> bool:
        """Hear that the client sends no more. It still gets the answers to what it has asked for.

        Also to what aiohttp refuses, which has no body there, whatever the head says. TLS cannot end one direction
        alone.
        """
        self.is_half_closed = True
        if self._awaited:
            self._awaited.look(is_last=True)
        if self.transport is None or self.transport.get_extra_info("sslcontext"):
            return False
        is_whole = not (self._left or self._watch) or (self._body is not None and self._body.is_eof())
        return self.state == AHEAD or (self.state == BEHIND and is_whole)

    def _read_or_pause(self) -> None:
        """Read only while there is room for it."""
        transport, pauses = self.transport, self._pauses_for_behind or (bool(self._held) and self.state != FREE)
        if pauses is self._is_paused or transport is None or transport.is_closing() or self.is_half_closed:
            return
        self._is_paused = pauses
        if pauses:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _begin(self) -> None:
        """Have a request answered before aiohttp; if it cannot be, by aiohttp.

        By a step of its own: what is looked up then is right for all requests that have arrived in the same pass.
        """
        if self._asked and self._site.busiest:
            (asked, text, begin), self._asked = self._asked, None
            if not self._site.busiest.take(asked, text[begin:], self):
                self._give(text, 0)

    def answer(self, parts: list[bytes]) -> None:
        """Write the answer to a request, and go on once the client has it."""
        if self._write(parts):
            self.go_on()
        else:
            self._task = self._loop.create_task(self._finish(parts))

    async def _finish(self, parts: list[bytes]) -> None:
        try:
            await self._taken(parts)
        finally:
            self.go_on()

    def may_be_gone(self) -> bool:
        """Tell whether the client has ended its side, or the connection is broken, also if that was not read yet.

        The system knows it before: of TLS asyncio tells the end late, and while reading is paused it tells nothing.
        True also if the system does not tell.
        """
        transport = self.transport
        if self.is_half_closed or transport is None or transport.is_closing():
            return True
        return not acknowledgement.is_open(transport.get_extra_info("socket"))

    def unacknowledged(self) -> int | None:
        """Return how many written bytes the client's system has not acknowledged; None if that is not known any more.

        Of what still waits in this process, or in a TLS layer, that is the number of bytes, more or less.
        """
        transport, below = self.transport, self.below
        if transport is None or transport.is_closing() or (below and below.is_closing()):
            return None
        left = acknowledgement.unacknowledged(transport.get_extra_info("socket"))
        if left is None:
            return None
        return left + transport.get_write_buffer_size() + (below.get_write_buffer_size() if below else 0)

    def expect_acknowledgement(self) -> Acknowledgement:
        """Begin to look for the acknowledgement of everything that was written."""
        self._awaited = begun = Acknowledgement(self.unacknowledged, self._cut_off)
        begun.look()
        return begun

    def _cut_off(self) -> None:
        if self.transport:
            self.transport.abort()

    async def hand_over(self, parts: list[bytes], *, counts: bool) -> bool:
        """Write an answer, and let go of its parts. Then call ``go_on``.

        Tell whether the client has it: see ``wire.handover.hand_over``. If that does not count, wait for less: until
        the system has taken it.
        """
        counts = counts and not self.may_be_gone()
        is_taken = self._write(parts)
        begun = self.expect_acknowledgement() if counts else None
        if not is_taken:
            is_taken = await self._taken(parts)
        parts.clear()
        return is_taken and begun is not None and await begun.wait()

    def _write(self, parts: list[bytes]) -> bool:
        """Write an answer. Return whether nothing has to wait for the client; also if it is gone."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return True
        if self._site.is_stopping:
            parts[0] = parts[0].replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        if sum(map(len, parts)) > SMALL_BYTES:
            hold_back(transport)
        ready.write(transport, parts)
        return not transport.get_write_buffer_size()

    async def _taken(self, parts: list[bytes]) -> bool:
        """Wait until the system has taken an answer, unless the client is too slow. Tell whether it has."""
        transport, busiest = self.transport, self._site.busiest
        assert transport  # noqa: S101 - something was written
        assert busiest  # noqa: S101 - it has answered
        drain_fully(transport)
        size = sum(map(len, parts))
        with busiest.budget.waiting(self.account, size, size, transport.get_write_buffer_size, transport.abort):
            return await taken(self._drain, transport)

    async def _drain(self) -> bool:
        if self._out:
            await self._out
        return self._out is None

    def go_on(self) -> None:
        """Take the next request, if it has come; or end what is to end."""
        if self.state == OVER:
            return
        now = self._loop.time()
        self.state, self.free_since, self._task, self._awaited = FREE, now, None, None
        if now >= self._placed_at + PLACED_SECONDS or self.place is not Standing.KNOWN:
            self._placed_at = now
            self._site.room.rest(self)
        self._site.went_on.set()
        if self.transport is None or self.transport.is_closing():
            return
        if self._held and not self._site.is_stopping:
            self._take_apart(self._held)
        elif self._is_paused:
            self._read_or_pause()
        if self.state == FREE and (self._site.is_stopping or self.is_half_closed):
            self.transport.close()

    def _hand_over(self, data: bytes, whole: int, head: framing.Head) -> None:
        """Hand a request of ``whole`` bytes to aiohttp, and hold what is not of it. Raises MalformedError."""
        if head.length is None:
            # Headers may follow on the last chunk. aiohttp's parser keeps the last of these, and puts it before those
            # of the next request. If a proxy shares the connection between users, that would be somebody else's: with
            # another token, say.
            self._watch = framing.Watch()
            whole = self._watch.feed(data)
            self._watch = None if self._watch.is_complete else self._watch
        self._held = data[whole:]
        left = max(0, whole - len(data))
        is_last = head.length is None or head.is_tunnel or (head.upgrades and left > 0)
        self._give(data[:whole], left, is_last=is_last)

    def _give(self, text: bytes, left: int, *, is_last: bool = False) -> None:
        """Give aiohttp a request, of whose body ``left`` bytes have not come yet."""
        transport = self.transport
        self.state, self._left, self._is_last = BEHIND, left, is_last
        self._is_answered = self._is_broken = self._has_begun = False
        self._site.went_on.set()
        if transport is None or transport.is_closing():
            return
        if self._behind is None:
            self._behind = Behind(self._site.server, self)
            self._behind.connection_made(cast(asyncio.Transport, Outlet(self, transport)))
            if self._out:
                self._behind.pause_writing()
        self._behind.data_received(text)

    def _hand_on_body(self, data: bytes) -> None:
        """Hand on more of the body of aiohttp's request."""
        assert self._behind  # noqa: S101 - it has a request
        try:
            if self._watch:
                self._left = self._watch.feed(data)
                self._watch = None if self._watch.is_complete else self._watch
        except MalformedError:
            self._break_body()
            return
        text, self._held = data[: self._left], data[self._left :]
        self._left -= len(text)
        self._behind.data_received(text)
        self._read_or_pause()
        self._go_on_if_answered()

    def _break_body(self) -> None:
        """Have the reader of a body hear that it will not come to its end, and answer.

        aiohttp would have it wait until the client goes, and would answer a second time after that.
        """
        self._watch, self._is_broken, self.is_refused = None, True, True
        if self._body:
            self._body.set_exception(web.RequestPayloadError("what follows is not HTTP"))

    def begun(self, body: StreamReader) -> bool:
        """Hear that aiohttp begins its request. Return whether it is the last of the connection."""
        self._body, self._has_begun = body, True
        if self._is_broken:
            self._break_body()
        return self._is_last

    def answered(self, *, stays_open: bool) -> None:
        """Hear that aiohttp has answered. If the connection does not stay open, it closes it."""
        self._body, self._is_answered = None, stays_open
        self._go_on_if_answered()

    def _go_on_if_answered(self) -> None:
        if self._is_answered and not self._left and self.state == BEHIND:
            self._is_answered = False
            self._loop.call_soon(self.go_on)  # aiohttp has more to do in the same step

    def pause_for_behind(self) -> None:
        """Have nothing more come."""
        self._pauses_for_behind = True
        self._read_or_pause()

    def resume_for_behind(self) -> None:
        """Have more come."""
        self._pauses_for_behind = False
        self._read_or_pause()

    def give_up(self, successor: asyncio.BaseProtocol) -> None:
        """Let another protocol have the connection, for good."""
        if self.transport:
            self.transport.set_protocol(_BETWEEN)
            self.transport.set_protocol(successor)
        self._forget()

    def pause_writing(self) -> None:
        """Let answers wait: the client takes less than it gets."""
        self._out = self._loop.create_future()
        if self._behind:
            self._behind.pause_writing()

    def resume_writing(self) -> None:
        """Write again."""
        out, self._out = self._out, None
        if out and not out.done():
            out.set_result(None)
        if self._behind:
            self._behind.resume_writing()

    def _refuse(self, error: Exception, answer: ApiError) -> None:
        """Answer what is no request, and end the connection. Neither the answer nor the log repeats what was sent."""
        transport, request_id = self.transport, new_request_id()
        if transport is None or transport.is_closing():
            return
        log.info("request_malformed", reason=type(error).__name__, request_id=request_id)
        headers = {**ready.headers_of(request_id), "Connection": "close"}
        refusal = answer_error(Format.JSON, headers, answer)
        more = self._site.cross_origin.lines(b"")
        ready.write(transport, [ready.written_response(refusal, self._site.clock, more)])
        self.is_refused = True
        self.end()

    def end(self) -> None:
        """Close the connection. A client that was refused, or sends more already, may go on for LINGER_SECONDS at most.

        It ends sooner if the client ends the connection, or the server stops. A connection that is closed while
        bytes wait there is reset, and its client loses the answer. With TLS it is left to chance.
        """
        transport, lingers, self.state = self.transport, self.is_refused or bool(self._held), OVER
        self.free_since = self._loop.time()
        self._site.room.rest(self)
        self._end_wait_for_head()
        if transport is None or transport.is_closing():
            return
        if not lingers or self._site.is_stopping or self.is_half_closed or not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:  # the client has gone
            transport.abort()
            return
        self._timer = self._loop.call_later(LINGER_SECONDS, transport.close)
        self.resume_for_behind()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget everything. What is being answered goes on."""
        behind, waits = self._behind, self.state == BEHIND and not self._has_begun
        self._forget()
        if behind and waits:  # else it would begin the request all the same, fail, and log that
            self._loop.call_soon(behind.connection_lost, exc)
        elif behind:
            behind.connection_lost(exc)

    def _forget(self) -> None:
        self.transport = self._behind = self._body = None
        if self._awaited:
            self._awaited.look(is_last=True)
            self._awaited = None
        self._end_wait_for_head()
        self._site.room.forget(self)
        self._site.went_on.set()
        if self._out and not self._out.done():
            self._out.set_result(None)
