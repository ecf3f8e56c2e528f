"""Sends responses, knows when they have left, and cuts off clients that take them too slowly.

What has to wait until a response has left must not be done for a broken connection.
"""

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from aiohttp import web

from conclave.logs.setup import get_logger
from conclave.response_memory import Share
from conclave.wire.ready import own_headers

log = get_logger(__name__)

SHARE = web.RequestKey("share", Share)
"""The share of the memory for all responses that the request's response takes."""

MAY_BE_GONE = "conclave_may_be_gone"
"""By this name a transport tells, as extra information, whether its client sends no more, or it is broken."""

BARE_TRANSPORT = "conclave_bare_transport"
"""By this name a transport that stands before another one tells which."""

LEAST_RATE = 16 * 1024
"""A client is cut off if it takes less than 16 KiB a second, by its average in a window."""

WINDOW_SECONDS = 60.0
"""How often the server looks what a client has taken since the last time."""

SMALL_BYTES = 256 * 1024
"""If at most 256 KiB are left, a slow client gets more time.

Then it is cut off only if it takes nothing in a window, or after LONGEST_SECONDS.
"""

LONGEST_SECONDS = 15 * 60.0

UNSENT_BYTES = 128 * 1024
"""At most 128 KiB of a large response wait in the system to be sent.

Otherwise it would be megabytes, which move in leaps.
"""


class Pieces(web.StreamResponse):
    """A response whose body is in pieces. Each piece is let go of when it has left. Only for ``hand_over``."""

    def __init__(
        self, request: web.Request, pieces: deque[bytes], status: int, media_type: str, *, are_shared: bool = False
    ) -> None:
        """Take over ``pieces``, at least one, as the response to ``request``.

        ``are_shared``: they are in memory anyway, and no larger than what any connection may hold.
        """
        super().__init__(status=status, headers={**own_headers(request), "Content-Type": media_type})
        self.content_length = self.left = sum(map(len, pieces))
        self.pieces = pieces
        self._are_shared = are_shared

    @property
    def memory(self) -> int:
        """The bytes of memory for responses that it takes now."""
        return 0 if self._are_shared else self.left


async def hand_over(request: web.Request, response: web.StreamResponse) -> bool:
    """Send ``response`` and tell whether all of it was handed to the connection.

    False if the connection broke before that, or was cut off, since the client takes less than LEAST_RATE. Handed over
    means: taken by the operating system; behind TLS, by the TLS layer, which may hold back up to 80 KiB.

    Also False if the client had ended its side before all was written: it gets the response, but has perhaps gone.
    """
    transport = request.transport
    if transport is None:
        return False
    share, size = request[SHARE], _size(response)
    if size > SMALL_BYTES:
        hold_back(transport)
    drain_fully(transport)
    # aiohttp joins what is not in pieces with the headers.
    memory = response.memory if isinstance(response, Pieces) else 2 * size
    share.begin_sending(memory, size, partial(_left, response, transport), transport.abort)
    try:
        return await _watched(_send(request, response), response, transport)
    finally:
        share.end_sending()


def drain_fully(transport: asyncio.WriteTransport) -> None:
    """Have draining wait until the system has taken everything. Call it in the step in which something is written."""
    # TLS layers pause at the limit, others beyond it. So at 0 a TLS layer would pause with nothing left to take.
    transport.set_write_buffer_limits(high=1 if transport.get_extra_info("sslcontext") else 0, low=0)


async def taken(drain: Callable[[], Coroutine[Any, Any, bool]], transport: asyncio.Transport) -> bool:
    """Wait until the system has taken what was written to a connection. Tell whether it has, as ``hand_over`` does.

    ``drain``: waits while writing is paused, and tells whether it goes on, see ``drain_fully``.
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
        if isinstance(response, Pieces):
            response.pieces.clear()


async def _keeps_up(
    sending: asyncio.Task[bool], response: web.StreamResponse | None, transport: asyncio.Transport
) -> bool:
    """Wait until all is sent. Return False as soon as the client is too slow for that."""
    ends, left = time.monotonic() + LONGEST_SECONDS, _size(response) + transport.get_write_buffer_size()
    while True:
        await asyncio.wait({sending}, timeout=WINDOW_SECONDS)
        if sending.done():
            return True
        before, left = left, _left(response, transport)
        is_late = left <= SMALL_BYTES and time.monotonic() > ends
        if is_late or before - left < (1 if left <= SMALL_BYTES else LEAST_RATE * WINDOW_SECONDS):
            return False


def _left(response: web.StreamResponse | None, transport: asyncio.WriteTransport) -> int:
    """Return how many bytes of what is being sent the system has not taken."""
    return (response.left if isinstance(response, Pieces) else 0) + transport.get_write_buffer_size()


def _size(response: web.StreamResponse | None) -> int:
    if isinstance(response, Pieces):
        return response.left
    return len(response.body) if isinstance(response, web.Response) and isinstance(response.body, bytes) else 0


async def _send(request: web.Request, response: web.StreamResponse) -> bool:
    protocol, transport, last = request.protocol, request.transport, b""
    await response.prepare(request)
    if isinstance(response, Pieces) and request.method != "HEAD":
        last = await _send_all_but_last(response, request[SHARE])
    may_be_gone = transport is None or bool(transport.get_extra_info(MAY_BE_GONE, default=False))
    await response.write_eof(last)
    # Whether the connection still stands says nothing: many clients close it as soon as they have everything. But
    # if it is lost while writing is paused, writing stays paused.
    return not protocol.writing_paused and not may_be_gone


async def _send_all_but_last(response: Pieces, share: Share) -> bytes:
    """Send the pieces of a response but the last one, and return that."""
    while len(response.pieces) > 1:
        piece = response.pieces.popleft()
        response.left -= len(piece)
        await response.write(piece)
        share.hold(response.memory)
    response.left = 0
    return response.pieces.popleft()


def hold_back(transport: asyncio.Transport) -> None:
    """Make the system take only bytes that it can send soon.

    So it is seen if a client takes none.
    """
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    connection = transport.get_extra_info("socket")
    if option is not None and connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES)
