"""Encodes events for a stream (server-sent events)."""

from functools import cache

from conclave.events import Event
from conclave.wire import formats, protobuf
from conclave.wire.events import EVENTS
from conclave.wire.formats import Format
from conclave.wire.schemas.base import schema_of


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
            event.written[self] = self._framed(_write(event, self._format))
        return event.written[self]

    def lagged(self, lost: int) -> bytes:
        """Encode that ``lost`` events were dropped. The client has to read its whole state again."""
        return self._framed(b"event: lagged\ndata: %d\n\n" % lost)

    def _framed(self, text: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(text), text) if self._chunked else text


event_encoder = cache(EventEncoder)
"""Return the encoder of a format, chunked or not."""


def _write(event: Event, written_in: Format) -> bytes:
    """Encode an event: in JSON its name and fields, in protobuf the hex of a ServerEvent."""
    values = schema_of(EVENTS[event.name]).dump(event.values)
    if written_in is Format.PROTOBUF:
        return b"data: " + protobuf.write("ServerEvent", {event.name: values}).hex().encode() + b"\n\n"
    return b"event: " + event.name.encode() + b"\ndata: " + formats.write(values) + b"\n\n"
