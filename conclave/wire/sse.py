"""How events are written on a stream (server-sent events)."""

from functools import cache

from conclave.events import Event
from conclave.wire import formats, protobuf
from conclave.wire.events import EVENTS
from conclave.wire.formats import Format
from conclave.wire.schemas.base import schema_of


class EventEncoder:
    """How one kind of stream is written: in which format, and whether in chunks. There is one object for each kind."""

    def __init__(self, written_in: Format, *, chunked: bool) -> None:
        """``chunked``: as HTTP/1.1 has it. Otherwise only the end of the connection tells the end of the stream."""
        self._format = written_in
        self._chunked = chunked
        self.end = b"0\r\n\r\n" if chunked else b""
        self.keep_alive = self._framed(b": keep-alive\n\n")
        """A comment in the stream. Clients ignore it."""

    def event(self, event: Event) -> bytes:
        """Write an event, once for all streams of this kind."""
        if self not in event.written:
            event.written[self] = self._framed(_write(event, self._format))
        return event.written[self]

    def lagged(self, lost: int) -> bytes:
        """Write that ``lost`` events were dropped. The client then has to read its whole state again."""
        return self._framed(b"event: lagged\ndata: %d\n\n" % lost)

    def _framed(self, text: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(text), text) if self._chunked else text


event_encoder = cache(EventEncoder)
"""The script of a format, chunked or not."""


def _write(event: Event, written_in: Format) -> bytes:
    """Write an event. JSON has its name and fields; protobuf has the hex of a ServerEvent, without a name."""
    values = schema_of(EVENTS[event.name]).dump(event.values)
    if written_in is Format.PROTOBUF:
        return b"data: " + protobuf.write("ServerEvent", {event.name: values}).hex().encode() + b"\n\n"
    return b"event: " + event.name.encode() + b"\ndata: " + formats.write(values) + b"\n\n"
