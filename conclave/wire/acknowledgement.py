"""Detects when a client's system has acknowledged all bytes of a connection.

Bytes that the operating system has accepted are lost if the connection is reset before they arrive. So a page counts as
fetched only once the client's TCP has acknowledged its last byte. There is no event for that: the system is polled at
once, then after growing pauses, and when the client sends its next request.
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
"""The system is polled after 1 ms, then after pauses that double, up to a second."""

_ESTABLISHED, _CLOSE_WAIT = 1, 8
"""Connection states in the first byte of TCP_INFO (Linux): open on both sides, and closed by the client."""

_IS_REPORTED = sys.platform == "linux"
"""Whether the system reports these states. Other systems use different numbers, or lack the calls."""

_COUNT = struct.Struct("i")


def is_open(transport: asyncio.Transport) -> bool:
    """Return whether both sides of a TCP connection are open; also False if unknown.

    asyncio reports the end of a TLS connection late, and not at all while reading is paused.
    """
    try:
        return not transport.is_closing() and _state(transport.get_extra_info("socket")) == _ESTABLISHED
    except (AttributeError, OSError, ValueError):
        return False


def _unacknowledged(transport: asyncio.Transport, below: asyncio.Transport | None) -> int | None:
    """Return how many written bytes the client's system has not acknowledged.

    None: the connection is lost, or the number is unknown. Bytes in this process or in a TLS layer are counted
    approximately. ``below``: the transport below a TLS layer.
    """
    if transport.is_closing() or (below and below.is_closing()):
        return None  # another connection may have the socket's number by now
    try:
        client_socket = transport.get_extra_info("socket")
        [unsent] = _COUNT.unpack(fcntl.ioctl(client_socket.fileno(), termios.TIOCOUTQ, _COUNT.pack(0)))
        if _state(client_socket) not in (_ESTABLISHED, _CLOSE_WAIT):  # checked last: a reset may discard the count
            return None
    except (AttributeError, OSError, ValueError):  # no socket, not TCP, or closed
        return None
    return int(unsent) + transport.get_write_buffer_size() + (below.get_write_buffer_size() if below else 0)


def _state(client_socket: Any) -> int | None:
    return client_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] if _IS_REPORTED else None


class Acknowledgement:
    """Waits for one acknowledgement. The connection is aborted if the client is too slow, see ``pace``."""

    __slots__ = ("_below", "_loop", "_pace", "_pause", "_result", "_timer", "_transport", "_window_ends")

    def __init__(self, transport: asyncio.Transport, below: asyncio.Transport | None) -> None:
        """``below``: the transport below ``transport``, if that is a TLS layer."""
        self._transport, self._below = transport, below
        self._loop = asyncio.get_running_loop()
        self._result: asyncio.Future[bool] = self._loop.create_future()
        self._pause = FIRST_PAUSE_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self._pace, self._window_ends = Pace(0), 0.0

    async def wait(self) -> bool:
        """Wait until everything is acknowledged, and return True; False if the connection is lost first."""
        left = self.poll()
        if not self._result.done():
            self._pace, self._window_ends = Pace(left or 0), self._loop.time() + pace.WINDOW_SECONDS
            self._timer = self._loop.call_later(self._pause, self._poll_again)
        try:
            return await self._result
        finally:
            if self._timer:
                self._timer.cancel()

    def poll(self, *, is_last: bool = False) -> int | None:
        """Poll, and return the number of unacknowledged bytes. ``is_last``: do not wait for more."""
        if self._result.done():
            return 0
        left = _unacknowledged(self._transport, self._below)
        if not left or is_last:
            self._result.set_result(left == 0)
        return left

    def _poll_again(self) -> None:
        left = self.poll()
        if self._result.done():
            return
        if self._loop.time() >= self._window_ends:
            self._window_ends = self._loop.time() + pace.WINDOW_SECONDS
            if not self._pace.keeps_up(left or 0):
                log.info("client_too_slow")
                self._result.set_result(False)
                self._transport.abort()
                return
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)
        self._timer = self._loop.call_later(self._pause, self._poll_again)
