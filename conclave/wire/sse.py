"""How events are written on a stream (server-sent events)."""

from conclave.events import Event
from conclave.wire import json_text, protobuf
from conclave.wire.negotiate import Format
from conclave.wire.schemas.base import the
from conclave.wire.schemas.events import EVENTS

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which clients pass over."""


def write(event: Event, written_in: Format) -> bytes:
    """Write an event: named, with its fields, in JSON; the hex of a ServerEvent, without a name, in protobuf."""
    if written_in not in event.written:
        event.written[written_in] = _write(event, written_in)
    return event.written[written_in]


def _write(event: Event, written_in: Format) -> bytes:
    values = the(EVENTS[event.name]).dump(event.values)
    if written_in is Format.PROTOBUF:
        return b"data: " + protobuf.write("ServerEvent", {event.name: values}).hex().encode() + b"\n\n"
    return b"event: " + event.name.encode() + b"\ndata: " + json_text.write(values) + b"\n\n"


def write_lagged(lost: int) -> bytes:
    """Write that ``lost`` events were dropped: the client has to read its whole state again."""
    return b"event: lagged\ndata: %d\n\n" % lost
