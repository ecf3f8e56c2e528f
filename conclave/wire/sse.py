"""How events are written on a stream (server-sent events), and how a stream ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from conclave.events import Event
from conclave.wire import json_text, protobuf
from conclave.wire.negotiate import Format
from conclave.wire.schemas.base import the
from conclave.wire.schemas.events import EVENTS

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment in the stream. Clients ignore it."""

LAST_SECONDS = 1.0
"""When its stream ends, a client gets 1 second to take what waits.

That is less than a request under way gets when the server stops.
"""


def write(event: Event, written_in: Format) -> bytes:
    """Write an event. JSON has its name and fields; protobuf has the hex of a ServerEvent, without a name."""
    if written_in not in event.written:
        event.written[written_in] = _write(event, written_in)
    return event.written[written_in]


def _write(event: Event, written_in: Format) -> bytes:
    values = the(EVENTS[event.name]).dump(event.values)
    if written_in is Format.PROTOBUF:
        return b"data: " + protobuf.write("ServerEvent", {event.name: values}).hex().encode() + b"\n\n"
    return b"event: " + event.name.encode() + b"\ndata: " + json_text.write(values) + b"\n\n"


def write_lagged(lost: int) -> bytes:
    """Write that ``lost`` events were dropped. The client then has to read its whole state again."""
    return b"event: lagged\ndata: %d\n\n" % lost


@asynccontextmanager
async def cut_off_late(request: web.Request) -> AsyncIterator[Callable[[], None]]:
    """Yield a function to call when the stream ends. LAST_SECONDS later the connection is broken off.

    Before that call a client that takes nothing is waited for without limit: what waits for it is bounded.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as limit:
            yield lambda: limit.reschedule(loop.time() + LAST_SECONDS)
    except TimeoutError:
        if request.transport:
            request.transport.abort()
