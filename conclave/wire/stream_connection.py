"""The connection of a stream, taken over from aiohttp: it costs little more than its socket.

aiohttp holds two tasks for each request under way, with the coroutines of all middlewares, the request, the response,
the parser and a timer. A stream is under way for days, and needs nothing of this once its headers are written. So the
transport gets another protocol then, which asyncio provides for, and aiohttp hears that its connection is over. From
there on the chunks, the pace of the client and the end are this module's. Bytes go straight to the transport: no task
is woken for them.
"""

import asyncio

from aiohttp import web

from conclave.events import Events, Stream
from conclave.wire.handover import BARE_TRANSPORT
from conclave.wire.sse import EventEncoder

LINGER_SECONDS = 1.0
"""When its stream ends, a client gets 1 second to take what waits.

That is less than a request under way gets when the server stops.
"""

BUFFER_BYTES = 64 * 1024
"""A client lags, and its events wait, once 64 KiB are written that the system has not taken. TLS would allow 512."""


class StreamHead(web.StreamResponse):
    """The response of a stream, of which aiohttp writes the headers only."""

    def __init__(self) -> None:
        """The connection is not for other requests: it ends with the stream."""
        super().__init__(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        self.force_close()

    async def write_eof(self, data: bytes = b"") -> None:
        """Write nothing. The stream goes on when aiohttp is done."""


class StreamConnection(Stream, asyncio.Protocol):
    """A stream of events to a client.

    Before ``begin``, and while the client takes nothing, its events wait. What waits is bounded.
    """

    __slots__ = ("_blocked", "_cutting_off", "_events", "_script", "_transport")

    def __init__(self, events: Events, user_id: bytes, session_id: int, encoder: EventEncoder) -> None:
        """``events`` forgets the stream when the connection is gone."""
        super().__init__(user_id, session_id)
        self._events = events
        self._encoder = encoder
        self._blocked = True
        self._transport: asyncio.Transport | None = None
        self._abort_timer: asyncio.TimerHandle | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the connection stands. What is added before it does is written, unless the client goes first."""
        return not self.ended and self._transport is not None and not self._transport.is_closing()

    def begin(self, request: web.Request) -> None:
        """Take over the connection of a request whose headers are answered. Raises ConnectionError if it is gone."""
        self._blocked = request.protocol.writing_paused
        self._transport = _take_over(request, self)
        self._transport.write(self._encoder.keep_alive)  # tells the client that it is connected
        self.flush()
        if self.ended:
            self.finish()

    def flush(self) -> None:
        """Write what waits, if the client keeps up."""
        if not (self._blocked or self._transport is None or self._transport.is_closing()):
            self._write()

    def keep_alive(self) -> None:
        """Write a comment, if the client keeps up."""
        if not (self._blocked or self._transport is None or self._transport.is_closing()):
            self._transport.write(self._encoder.keep_alive)

    def finish(self) -> None:
        """Write what waits, and the end. LINGER_SECONDS later the connection is broken off."""
        if self._transport is None:
            return
        if not self._transport.is_closing():
            self._write()
            if self._encoder.end:
                self._transport.write(self._encoder.end)
            self._transport.close()
        self._abort_timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def break_off(self) -> None:
        """Close the connection at once."""
        if self._transport:
            self._transport.abort()

    def _write(self) -> None:
        if not self._waiting or self._transport is None:
            return
        lost, events = self.take()
        self._events.lost += lost
        if len(events) == 1 and not lost:
            self._transport.write(self._encoder.event(events[0]))  # the same bytes for all: nothing is copied
        else:
            lagged = [self._encoder.lagged(lost)] if lost else []
            self._transport.write(b"".join(lagged + [self._encoder.event(event) for event in events]))

    def pause_writing(self) -> None:
        """Let events wait: the client takes less than it gets."""
        self._blocked = True

    def resume_writing(self) -> None:
        """Write again: the client has taken what it got."""
        self._blocked = False
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the stream. What clients send meanwhile is not looked at."""
        self._transport = None
        self._events.lost += self.take()[0]
        if self._abort_timer:
            self._abort_timer.cancel()
        self._events.remove(self)


def _take_over(request: web.Request, successor: asyncio.Protocol) -> asyncio.Transport:
    """Take the transport from aiohttp's protocol, which then ends by itself as if the client had gone."""
    transport, former = request.transport, request.protocol
    if transport is None or transport.is_closing():
        raise ConnectionError("the client is gone")
    transport.set_protocol(successor)
    bare: asyncio.Transport = transport.get_extra_info(BARE_TRANSPORT, transport)
    former.transport = None  # or it would close the transport
    former.connection_lost(None)
    bare.set_write_buffer_limits(BUFFER_BYTES)  # a large response before this one had other limits
    bare.resume_reading()  # or it would not be noticed if the client goes
    return bare
