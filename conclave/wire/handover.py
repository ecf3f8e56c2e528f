"""Sends responses, waits until clients have acknowledged them, and aborts slow connections."""

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
"""The memory budget of responses."""

ACCOUNT = web.RequestKey("account", bytes)
"""The authenticated user, if any."""

CONNECTION = "conclave_connection"
"""The extra info of a transport with its ``AcknowledgingConnection``."""

BARE_TRANSPORT = "conclave_bare_transport"
"""The extra info of a wrapped transport with the original one."""

UNSENT_BYTES = 128 * 1024
"""At most 128 KiB of a large response are unsent in the system, so that progress is visible."""


_UNKNOWN = 2**60
"""The remaining bytes of a response of unknown length: more than a client can read."""


class StreamedResponse(web.StreamResponse):
    """A response that is produced in chunks while it is sent. Only for ``hand_over``."""

    def __init__(
        self,
        request: web.Request,
        chunks: AsyncGenerator[bytes, None],
        status: int,
        media_type: str,
        size: int | None = None,
    ) -> None:
        """``chunks``: the next is requested once the system has accepted the previous one.

        If it raises, the connection is aborted. ``size``: bytes of all chunks; None if unknown: no Content-Length.
        """
        super().__init__(status=status, headers={**response_headers(request), "Content-Type": media_type})
        self.chunks = chunks
        self.content_length = size
        self.left = _UNKNOWN if size is None else size
        self.is_being_read = False


class AcknowledgingConnection(Protocol):
    """A connection that detects whether a response was acknowledged."""

    def may_be_gone(self) -> bool:
        """Return whether the client has ended its side, or the connection is lost; also True if unknown."""

    def expect_acknowledgement(self) -> Acknowledgement | None:
        """Start waiting for the acknowledgement of all written bytes. None: the connection is lost."""


async def hand_over(request: web.Request, response: web.StreamResponse, *, counts: bool) -> bool:
    """Send ``response``. If ``counts``, return whether the client's system has acknowledged all of it.

    False if the connection was lost, or aborted because the client is slower than ``pace.MIN_RATE``, or if the system
    does not report acknowledgements. Also False if the client had ended its side before all was written.

    Unless ``counts``, wait only until the operating system has accepted everything; with TLS, until the TLS layer has,
    which may buffer up to 80 KiB.
    """
    transport = request.transport
    if transport is None:
        return False
    size = _size(response)
    if size > pace.SMALL_BYTES:
        limit_unsent(transport)
    wait_for_full_drain(transport)
    # aiohttp copies a body to join it with the headers. Chunks are in memory one at a time.
    held_bytes = 0 if isinstance(response, StreamedResponse) else 2 * size
    acknowledgements: list[Acknowledgement] = []
    left = partial(_left, response, transport)
    with request[BUDGET].waiting(request.get(ACCOUNT), held_bytes, size, left, transport.abort) as pending_response:
        sending = _send(request, response, pending_response, acknowledgements if counts else None)
        is_sent = await _watched(sending, response, transport)
    if is_sent and isinstance(response, web.Response):
        response.body = None  # not needed while waiting
    return is_sent and bool(acknowledgements) and await acknowledgements[0].wait()


def wait_for_full_drain(transport: asyncio.WriteTransport) -> None:
    """Make draining wait until the system has accepted everything. Call it in the same step as the write."""
    # TLS layers pause at the limit, others beyond it: at 0 a TLS layer would pause with an empty buffer.
    transport.set_write_buffer_limits(high=1 if transport.get_extra_info("sslcontext") else 0, low=0)


async def wait_drained(drain: Callable[[], Coroutine[Any, Any, bool]], transport: asyncio.Transport) -> bool:
    """Wait until the system has accepted all written bytes. Return False if the client was too slow or is gone.

    ``drain``: waits while writing is paused, and returns whether it was resumed.
    """
    return await _watched(drain(), None, transport)


async def _watched(
    sending: Coroutine[Any, Any, bool], response: web.StreamResponse | None, transport: asyncio.Transport
) -> bool:
    """Run ``sending``; abort the connection if the client is too slow."""
    task = asyncio.create_task(sending)
    try:
        if not await _keeps_up(task, response, transport):
            log.info("client_too_slow")
            transport.abort()
        return await task
    except ConnectionError:
        return False
    finally:
        task.cancel()
        if isinstance(response, StreamedResponse):
            await asyncio.wait({task})
            await response.chunks.aclose()


async def _keeps_up(
    task: asyncio.Task[bool], response: web.StreamResponse | None, transport: asyncio.Transport
) -> bool:
    """Wait until all is sent. Return False as soon as the client is too slow."""
    progress = Pace(_size(response) + transport.get_write_buffer_size())
    while True:
        await asyncio.wait({task}, timeout=pace.WINDOW_SECONDS)
        if task.done():
            return True
        if isinstance(response, StreamedResponse) and response.is_being_read:
            continue  # the client has read all chunks so far
        if not progress.keeps_up(_left(response, transport)):
            return False


def _left(response: web.StreamResponse | None, transport: asyncio.WriteTransport) -> int:
    """Return how many bytes the system has not accepted."""
    return (response.left if isinstance(response, StreamedResponse) else 0) + transport.get_write_buffer_size()


def _size(response: web.StreamResponse | None) -> int:
    if isinstance(response, StreamedResponse):
        return response.left
    return len(response.body) if isinstance(response, web.Response) and isinstance(response.body, bytes) else 0


async def _send(
    request: web.Request,
    response: web.StreamResponse,
    pending_response: PendingResponse,
    acknowledgements: list[Acknowledgement] | None,
) -> bool:
    """Send a response. ``acknowledgements``: the pending acknowledgement is appended; None: it is not needed."""
    protocol, transport = request.protocol, request.transport
    connection: AcknowledgingConnection | None = transport.get_extra_info(CONNECTION) if transport else None
    await response.prepare(request)
    if isinstance(response, StreamedResponse) and request.method != "HEAD":
        await _send_chunks(request, response, pending_response)
    may_be_gone = acknowledgements is None or connection is None or connection.may_be_gone()
    await response.write_eof()
    # At once: many clients close the connection as soon as they have received everything.
    if (
        acknowledgements is not None
        and not may_be_gone
        and connection
        and (acknowledgement := connection.expect_acknowledgement())
    ):
        acknowledgements.append(acknowledgement)
    # A lost connection stays paused if it was paused before.
    return not protocol.writing_paused


async def _send_chunks(request: web.Request, response: StreamedResponse, pending_response: PendingResponse) -> None:
    """Send a response in chunks. Raises ConnectionError if the connection is lost or a chunk cannot be produced."""
    while (chunk := await _next_chunk(request, response)) is not None:
        pending_response.hold(len(chunk))
        response.left -= len(chunk)
        await response.write(chunk)
        await request.writer.drain()
    response.left = 0


async def _next_chunk(request: web.Request, response: StreamedResponse) -> bytes | None:
    """Return the next chunk; None at the end. Reset the connection if it fails.

    Otherwise the client would take an incomplete response for a complete one.
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
    """Reset a connection, so that the client notices an incomplete response."""
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    if connection is not None:
        # Unsent bytes are dropped. In HTTP/1.0 a regular close would mark the end of the body.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def limit_unsent(transport: asyncio.Transport) -> None:
    """Limit the unsent bytes in the system, so that it shows whether a client reads."""
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    connection = transport.get_extra_info("socket")
    if option is not None and connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES)
