"""The connection of an event stream, taken over from aiohttp to save memory.

aiohttp keeps two tasks for each request, with coroutines, request, response, parser and timer. A stream lasts for days,
and does not need them after its headers. So its transport then gets another protocol, and aiohttp's connection ends.
This module writes directly to the transport, without a task.
"""

import asyncio
from functools import cache

from aiohttp import web

from conclave.events import Event, Events, Stream
from conclave.wire import formats, protobuf
from conclave.wire.events import EVENTS
from conclave.wire.formats import Format
from conclave.wire.handover import BARE_TRANSPORT
from conclave.wire.schemas.base import schema_of

LINGER_SECONDS = 1.0
"""A client has 1 second to read the queued events after the end of its stream.

That is less than requests in progress get when the server stops.
"""

BUFFER_BYTES = 64 * 1024
"""Events are queued while more than 64 KiB are unsent. The default of TLS would be 512."""


class EventEncoder:
    """Encodes events in one format, chunked or not. There is one instance for each combination."""

    def __init__(self, written_in: Format, *, chunked: bool) -> None:
        """``chunked``: for HTTP/1.1. Otherwise the stream ends with its connection."""
        self._format = written_in
        self._chunked = chunked
        self.end = b"0\r\n\r\n" if chunked else b""
        self.keep_alive = self._framed(b": keep-alive\n\n")
        """A comment, which clients ignore."""

    def event(self, event: Event) -> bytes:
        """Encode an event, once for all streams of this format."""
        if self not in event.written:
            event.written[self] = self._framed(_encode(event, self._format))
        return event.written[self]

    def lagged(self, lost: int) -> bytes:
        """Encode that ``lost`` events were dropped. The client has to read its whole state again."""
        return self._framed(b"event: lagged\ndata: %d\n\n" % lost)

    def _framed(self, text: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(text), text) if self._chunked else text


event_encoder = cache(EventEncoder)
"""Return the encoder of a format, chunked or not."""


def _encode(event: Event, written_in: Format) -> bytes:
    """Encode an event: in JSON its name and fields, in protobuf the hex of a ServerEvent."""
    values = schema_of(EVENTS[event.name]).dump(event.values)
    if written_in is Format.PROTOBUF:
        return b"data: " + protobuf.write("ServerEvent", {event.name: values}).hex().encode() + b"\n\n"
    return b"event: " + event.name.encode() + b"\ndata: " + formats.write(values) + b"\n\n"


class StreamHead(web.StreamResponse):
    """The response of a stream. aiohttp writes only its headers."""

    def __init__(self) -> None:
        """Make the connection end with the stream."""
        super().__init__(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        self.force_close()

    async def write_eof(self, data: bytes = b"") -> None:
        """Write nothing: the stream continues after aiohttp's part."""


class StreamConnection(Stream, asyncio.Protocol):
    """The connection of an event stream.

    Before ``begin``, and while the client is slow, events are queued.
    """

    __slots__ = ("_abort_timer", "_encoder", "_events", "_is_blocked", "_transport")

    def __init__(self, events: Events, user_id: bytes, session_id: int, encoder: EventEncoder) -> None:
        """``events``: the stream is removed from it when the connection is lost."""
        super().__init__(user_id, session_id)
        self._events = events
        self._encoder = encoder
        self._is_blocked = True
        self._transport: asyncio.Transport | None = None
        self._abort_timer: asyncio.TimerHandle | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the connection is open. Events from before ``begin`` are written then."""
        return not self.ended and self._transport is not None and not self._transport.is_closing()

    def begin(self, request: web.Request) -> None:
        """Take over the connection of a request after its response headers. Raises ConnectionError if it is lost."""
        self._is_blocked = request.protocol.writing_paused
        self._transport = _take_over(request, self)
        self._transport.write(self._encoder.keep_alive)  # shows the client that it is connected
        self.flush()
        if self.ended:
            self.finish()

    def flush(self) -> None:
        """Write the queued events, unless writing is blocked."""
        if not (self._is_blocked or self._transport is None or self._transport.is_closing()):
            self._write()

    def keep_alive(self) -> None:
        """Write a comment, unless writing is blocked."""
        if not (self._is_blocked or self._transport is None or self._transport.is_closing()):
            self._transport.write(self._encoder.keep_alive)

    def finish(self) -> None:
        """Write the queued events and the end. Abort the connection after LINGER_SECONDS."""
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
        if not self._queue or self._transport is None:
            return
        lost_count, events = self.take()
        self._events.lost += lost_count
        if len(events) == 1 and not lost_count:
            self._transport.write(self._encoder.event(events[0]))  # shared by all streams, so nothing is copied
        else:
            lagged = [self._encoder.lagged(lost_count)] if lost_count else []
            self._transport.write(b"".join(lagged + [self._encoder.event(event) for event in events]))

    def pause_writing(self) -> None:
        """Queue events: the client reads too slowly."""
        self._is_blocked = True

    def resume_writing(self) -> None:
        """Write the queued events: the client has read the earlier ones."""
        self._is_blocked = False
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the stream. Data from clients is ignored."""
        self._transport = None
        self._events.lost += self.take()[0]
        if self._abort_timer:
            self._abort_timer.cancel()
        self._events.remove(self)


def _take_over(request: web.Request, successor: asyncio.Protocol) -> asyncio.Transport:
    """Take the transport from aiohttp's protocol, which then ends as if the client had disconnected."""
    transport, former_protocol = request.transport, request.protocol
    if transport is None or transport.is_closing():
        raise ConnectionError("the client is gone")
    transport.set_protocol(successor)
    bare_transport: asyncio.Transport = transport.get_extra_info(BARE_TRANSPORT, transport)
    former_protocol.transport = None  # or it would close the transport
    former_protocol.connection_lost(None)
    bare_transport.set_write_buffer_limits(BUFFER_BYTES)  # a large response before this one had other limits
    bare_transport.resume_reading()  # to detect a disconnect
    return bare_transport
