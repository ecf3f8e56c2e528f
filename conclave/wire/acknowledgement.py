"""Finds out when a client's system has acknowledged everything that was written to its connection.

What the operating system has taken is lost if the connection is reset before it has left, or on its way. So a page
counts as fetched only once the other side's TCP has acknowledged its last byte. There is no event for that. The system
is asked at once, then after pauses that grow, and whenever the client sends something: its next request carries the
acknowledgement.
"""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from typing import Any

from conclave.logs.setup import get_logger
from conclave.wire import pace
from conclave.wire.pace import Pace

log = get_logger(__name__)

FIRST_PAUSE_SECONDS = 0.001
MAX_PAUSE_SECONDS = 1.0
"""The system is asked after 1 ms, then after pauses that double, up to a second."""

_ESTABLISHED, _CLOSE_WAIT = 1, 8
"""States of a connection, by the first byte of TCP_INFO (Linux): open on both sides; the other side sends no more."""

_IS_REPORTED = sys.platform == "linux"
"""Whether the system reports it. Others have these calls too, but with their own numbers, or none."""

_COUNT = struct.Struct("i")


def is_open(transport: asyncio.Transport) -> bool:
    """Return whether both sides of a TCP connection are open. False also if the system does not report it.

    The system knows before asyncio, which reports the end of a TLS connection late, and nothing while reading is
    paused.
    """
    try:
        return not transport.is_closing() and _state(transport.get_extra_info("socket")) == _ESTABLISHED
    except (AttributeError, OSError, ValueError):
        return False


def _unacknowledged(transport: asyncio.Transport, below: asyncio.Transport | None) -> int | None:
    """Return how many written bytes the client's system has not acknowledged.

    None: the connection is broken or closed, or the system does not report it. Of what waits in this process, or in a
    TLS layer, the number is approximate. ``below``: the transport below a TLS layer.
    """
    if transport.is_closing() or (below and below.is_closing()):
        return None  # another connection may have the socket's number by now
    try:
        end = transport.get_extra_info("socket")
        [left] = _COUNT.unpack(fcntl.ioctl(end.fileno(), termios.TIOCOUTQ, _COUNT.pack(0)))
        if _state(end) not in (_ESTABLISHED, _CLOSE_WAIT):  # last: a reset may forget what was not acknowledged
            return None
    except (AttributeError, OSError, ValueError):  # no socket, not TCP, or closed
        return None
    return int(left) + transport.get_write_buffer_size() + (below.get_write_buffer_size() if below else 0)


def _state(end: Any) -> int | None:
    return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] if _IS_REPORTED else None


class Acknowledgement:
    """Waits for one acknowledgement. A client that takes too long is cut off, as one that takes a response slowly."""

    __slots__ = ("_below", "_loop", "_pace", "_pause", "_received", "_timer", "_transport", "_window_ends")

    def __init__(self, transport: asyncio.Transport, below: asyncio.Transport | None) -> None:
        """``below``: the transport below ``transport``, if that is a TLS layer."""
        self._transport, self._below = transport, below
        self._loop = asyncio.get_running_loop()
        self._received: asyncio.Future[bool] = self._loop.create_future()
        self._pause = FIRST_PAUSE_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self._pace, self._window_ends = Pace(0), 0.0

    async def wait(self) -> bool:
        """Wait until everything is acknowledged, and return True; False if the connection breaks before that."""
        left = self.look()
        if not self._received.done():
            self._pace, self._window_ends = Pace(left or 0), self._loop.time() + pace.WINDOW_SECONDS
            self._timer = self._loop.call_later(self._pause, self._look_again)
        try:
            return await self._received
        finally:
            if self._timer:
                self._timer.cancel()

    def look(self, *, is_last: bool = False) -> int | None:
        """See how many bytes are left. ``is_last``: what is not acknowledged by now never will be."""
        if self._received.done():
            return 0
        left = _unacknowledged(self._transport, self._below)
        if not left or is_last:
            self._received.set_result(left == 0)
        return left

    def _look_again(self) -> None:
        left = self.look()
        if self._received.done():
            return
        if self._loop.time() >= self._window_ends:
            self._window_ends = self._loop.time() + pace.WINDOW_SECONDS
            if not self._pace.keeps_up(left or 0):
                log.info("client_too_slow")
                self._received.set_result(False)
                self._transport.abort()
                return
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)
        self._timer = self._loop.call_later(self._pause, self._look_again)
