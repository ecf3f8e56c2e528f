"""Sends responses, waits until they have arrived, and cuts off clients that read them too slowly.

What has to wait until a response has arrived must not be done for a broken connection.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from aiohttp import web

from conclave.errors import ApiError
from conclave.logs.setup import get_logger
from conclave.response_memory import Budget, PendingResponse
from conclave.wire import pace
from conclave.wire.acknowledgement import Acknowledgement
from conclave.wire.pace import Pace
from conclave.wire.response_head import response_headers

log = get_logger(__name__)

BUDGET = web.RequestKey("budget", Budget)
"""The memory of responses that wait for their clients."""

ACCOUNT = web.RequestKey("account", bytes)
"""Whose response it is, once that is known."""

CONNECTION = "conclave_connection"
"""The name of a transport's extra information that is its ``AcknowledgingConnection``."""

BARE_TRANSPORT = "conclave_bare_transport"
"""The name of a transport's extra information that is the transport behind it."""

UNSENT_BYTES = 128 * 1024
"""At most 128 KiB of a large response wait in the system to be sent.

Otherwise it would be megabytes, which move in leaps.
"""


_UNKNOWN = 2**60
"""A response whose length is not known has this many bytes left: more than a client can take."""


class StreamedResponse(web.StreamResponse):
    """A response that is written while it is read. Only for ``hand_over``."""

    def __init__(
        self,
        request: web.Request,
        chunks: AsyncGenerator[bytes, None],
        status: int,
        media_type: str,
        size: int | None = None,
    ) -> None:
        """``chunks``: each is asked for when the system has taken the one before. If it raises, the connection ends.

        ``size``: the bytes of all chunks; None if that is not known: then it is sent without its length.
        """
        super().__init__(status=status, headers={**response_headers(request), "Content-Type": media_type})
        self.chunks = chunks
        self.content_length = size
        self.left = _UNKNOWN if size is None else size
        self.is_being_read = False


class AcknowledgingConnection(Protocol):
    """A client's connection that knows whether a response has arrived."""

    def may_be_gone(self) -> bool:
        """Return whether the client has ended its side, or the connection is broken; True also if that is unknown."""

    def expect_acknowledgement(self) -> Acknowledgement | None:
        """Start to wait for the acknowledgement of everything that was written. None: the connection is lost."""


async def hand_over(request: web.Request, response: web.StreamResponse, *, counts: bool) -> bool:
    """Send ``response``. If its arrival ``counts``, return whether the client's system has acknowledged all of it.

    False if the connection broke before that, or was cut off since the client takes less than ``pace.MIN_RATE``, or
    if the system does not report it. Also False if the client had ended its side before all was written: it gets the
    response, but may be gone.

    If it does not count, wait only until the operating system has taken everything; behind TLS, until the TLS layer
    has, which may hold back up to 80 KiB.
    """
    transport = request.transport
    if transport is None:
        return False
    size = _size(response)
    if size > pace.SMALL_BYTES:
        limit_unsent(transport)
    wait_for_full_drain(transport)
    # aiohttp joins a body with the headers. Of chunks one is in memory at a time.
    held = 0 if isinstance(response, StreamedResponse) else 2 * size
    awaited: list[Acknowledgement] = []
    left = partial(_left, response, transport)
    with request[BUDGET].waiting(request.get(ACCOUNT), held, size, left, transport.abort) as waiting:
        sending = _send(request, response, waiting, awaited if counts else None)
        is_sent = await _watched(sending, response, transport)
    if is_sent and isinstance(response, web.Response):
        response.body = None  # what is acknowledged slowly is not kept for that
    return is_sent and bool(awaited) and await awaited[0].wait()


def wait_for_full_drain(transport: asyncio.WriteTransport) -> None:
    """Have draining wait until the system has taken everything. Call it in the step in which something is written."""
    # TLS layers pause at the limit, others beyond it. So at 0 a TLS layer would pause with nothing left to take.
    transport.set_write_buffer_limits(high=1 if transport.get_extra_info("sslcontext") else 0, low=0)


async def wait_drained(drain: Callable[[], Coroutine[Any, Any, bool]], transport: asyncio.Transport) -> bool:
    """Wait until the system has taken what was written. Return whether it has; the client is cut off if it is too slow.

    ``drain``: waits while writing is paused, and returns whether it was resumed, see ``wait_for_full_drain``.
    """
    return await _watched(drain(), None, transport)


async def _watched(
    sending_all: Coroutine[Any, Any, bool], response: web.StreamResponse | None, transport: asyncio.Transport
) -> bool:
    """Wait for ``sending_all``, while the client keeps up."""
    sending = asyncio.create_task(sending_all)
    try:
        if not await _keeps_up(sending, response, transport):
            log.info("client_too_slow")
            transport.abort()
        return await sending
    except ConnectionError:
        return False
    finally:
        sending.cancel()
        if isinstance(response, StreamedResponse):
            await asyncio.wait({sending})
            await response.chunks.aclose()


async def _keeps_up(
    sending: asyncio.Task[bool], response: web.StreamResponse | None, transport: asyncio.Transport
) -> bool:
    """Wait until all is sent. Return False as soon as the client is too slow for that."""
    watched = Pace(_size(response) + transport.get_write_buffer_size())
    while True:
        await asyncio.wait({sending}, timeout=pace.WINDOW_SECONDS)
        if sending.done():
            return True
        if isinstance(response, StreamedResponse) and response.is_being_read:
            continue  # the client has taken all that there was
        if not watched.keeps_up(_left(response, transport)):
            return False


def _left(response: web.StreamResponse | None, transport: asyncio.WriteTransport) -> int:
    """Return how many bytes of what is being sent the system has not taken."""
    return (response.left if isinstance(response, StreamedResponse) else 0) + transport.get_write_buffer_size()


def _size(response: web.StreamResponse | None) -> int:
    if isinstance(response, StreamedResponse):
        return response.left
    return len(response.body) if isinstance(response, web.Response) and isinstance(response.body, bytes) else 0


async def _send(
    request: web.Request, response: web.StreamResponse, waiting: PendingResponse, awaited: list[Acknowledgement] | None
) -> bool:
    """Send a response. ``awaited``: gets the acknowledgement to wait for once all is written; None: none is needed."""
    protocol, transport = request.protocol, request.transport
    connection: AcknowledgingConnection | None = transport.get_extra_info(CONNECTION) if transport else None
    await response.prepare(request)
    if isinstance(response, StreamedResponse) and request.method != "HEAD":
        await _send_chunks(request, response, waiting)
    may_be_gone = awaited is None or connection is None or connection.may_be_gone()
    await response.write_eof()
    # At once: many clients close the connection as soon as they have everything.
    if awaited is not None and not may_be_gone and connection and (expected := connection.expect_acknowledgement()):
        awaited.append(expected)
    # So it says nothing whether the connection is still open. But if it is lost while writing is paused, writing stays
    # paused.
    return not protocol.writing_paused


async def _send_chunks(request: web.Request, response: StreamedResponse, waiting: PendingResponse) -> None:
    """Send a response as it is read. Raises ConnectionError, also if it cannot be read to its end."""
    while (chunk := await _next_chunk(request, response)) is not None:
        waiting.hold(len(chunk))
        response.left -= len(chunk)
        await response.write(chunk)
        await request.writer.drain()
    response.left = 0


async def _next_chunk(request: web.Request, response: StreamedResponse) -> bytes | None:
    """Return the next chunk; None at the end. If it cannot be read, break the connection off.

    Otherwise the client would take the part that it has for the whole.
    """
    response.is_being_read = True
    try:
        return await anext(response.chunks, None)
    except Exception as error:
        if isinstance(error, ApiError):
            log.info("list_broken_off", reason=type(error).__name__)
        else:
            log.error("list_broken_off", exc_info=error)
        _break_off(request.transport)
        raise ConnectionAbortedError from error
    finally:
        response.is_being_read = False


def _break_off(transport: asyncio.Transport | None) -> None:
    """End a connection so that its client sees that it was not ended in order, whatever it speaks."""
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    if connection is not None:
        # What the system holds is dropped, and a reset sent: by HTTP/1.0 an end in order would be the end of the body.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def limit_unsent(transport: asyncio.Transport) -> None:
    """Make the system take only bytes that it can send soon.

    So it is seen if a client takes none.
    """
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    connection = transport.get_extra_info("socket")
    if option is not None and connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES)
