"""Knowing that a response has left, and not holding it for ever for who takes it slowly.

What has to wait until it has left must not be done for a broken connection.
"""

import asyncio
import socket
import time
from collections import deque

from aiohttp import web

from conclave.budget import Share
from conclave.logs import get_logger

log = get_logger(__name__)

SHARE = web.RequestKey("share", Share)
"""What the request's response takes of the memory for all."""

LEAST_RATE = 16 * 1024
"""Bytes a second: a client that takes less, by its average in a window, is cut off."""

WINDOW_SECONDS = 60.0

SMALL_BYTES = 256 * 1024
"""Where no more is left, a client is only cut off if it takes nothing in a window, or after LONGEST_SECONDS."""

LONGEST_SECONDS = 15 * 60.0

UNSENT_BYTES = 128 * 1024
"""What the system takes of a large response beyond what it can send: otherwise megabytes, which move in leaps."""


class Pieces(web.StreamResponse):
    """A response whose body is there in pieces, each let go of when it has left. Only for ``hand_over``."""

    def __init__(self, pieces: deque[bytes], status: int, media_type: str) -> None:
        """Take over ``pieces``, at least one."""
        super().__init__(status=status, headers={"Content-Type": media_type})
        self.content_length = self.left = sum(map(len, pieces))
        self.pieces = pieces


async def hand_over(request: web.Request, response: web.StreamResponse) -> bool:
    """Send ``response`` and tell whether all of it was handed to the connection.

    False if the connection broke before, or was cut off: for a client that takes less than LEAST_RATE. Handed over
    means: taken by the operating system; behind TLS, by the TLS layer, which may hold back up to 64 KiB.
    """
    transport = request.transport
    if transport is None:
        return False
    # With a limit of nothing a write is tried at once, and draining waits until the kernel has taken it all.
    # TLS layers pause at the limit, others beyond it: of nothing, the former would pause with nothing left to take.
    transport.set_write_buffer_limits(high=1 if transport.get_extra_info("sslcontext") else 0, low=0)
    if isinstance(response, Pieces):
        _hold_back(transport)
        request[SHARE].hold(response.left)
    else:
        request[SHARE].hold(2 * _size(response))  # aiohttp joins it with the headers
    sending = asyncio.create_task(_send(request, response))
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


async def _keeps_up(sending: asyncio.Task[bool], response: web.StreamResponse, transport: asyncio.Transport) -> bool:
    """Wait until all is sent; return False as soon as the client is too slow for that."""
    ends, left = time.monotonic() + LONGEST_SECONDS, _size(response) + transport.get_write_buffer_size()
    while True:
        await asyncio.wait({sending}, timeout=WINDOW_SECONDS)
        if sending.done():
            return True
        waiting = response.left if isinstance(response, Pieces) else 0
        before, left = left, waiting + transport.get_write_buffer_size()
        is_late = left <= SMALL_BYTES and time.monotonic() > ends
        if is_late or before - left < (1 if left <= SMALL_BYTES else LEAST_RATE * WINDOW_SECONDS):
            return False


def _size(response: web.StreamResponse) -> int:
    if isinstance(response, Pieces):
        return response.left
    return len(response.body) if isinstance(response, web.Response) and isinstance(response.body, bytes) else 0


async def _send(request: web.Request, response: web.StreamResponse) -> bool:
    protocol = request.protocol
    await response.prepare(request)
    if isinstance(response, Pieces) and request.method != "HEAD":
        await _send_pieces(response, request[SHARE])
    else:
        await response.write_eof()
    # Not whether the connection still stands: many clients close it as soon as they have everything. But a
    # connection that is lost while writing is paused stays paused.
    return not protocol.writing_paused


async def _send_pieces(response: Pieces, share: Share) -> None:
    while len(response.pieces) > 1:
        piece = response.pieces.popleft()
        response.left -= len(piece)
        await response.write(piece)
        share.hold(response.left)
    response.left = 0
    await response.write_eof(response.pieces.popleft())


def _hold_back(transport: asyncio.Transport) -> None:
    """Have the system say that it has taken bytes when it can send them soon, so that it is seen who takes none."""
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    connection = transport.get_extra_info("socket")
    if option is not None and connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES)
