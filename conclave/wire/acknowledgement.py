"""Tells when a client's system has acknowledged everything that was written to its connection.

What the operating system has taken is lost if the connection is reset before it has left, or on its way. So a page
counts as fetched only once the other side's TCP has acknowledged its last byte. No event tells of that. The system is
asked at once, then after pauses that grow, and whenever something comes from the client: its next request carries the
acknowledgement.
"""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from collections.abc import Callable
from typing import Any

from conclave.logs.setup import get_logger
from conclave.wire import pace
from conclave.wire.pace import Pace

log = get_logger(__name__)

FIRST_PAUSE_SECONDS = 0.001
MOST_PAUSE_SECONDS = 1.0
"""The system is asked after 1 ms, then after pauses that double, up to a second."""

_ESTABLISHED, _CLOSE_WAIT = 1, 8
"""States of a connection, by the first byte of TCP_INFO (Linux): open on both sides; the other side sends no more."""

_IS_TOLD = sys.platform == "linux"
"""Whether the system tells. Others have these questions too, but answer in their own numbers, or not at all."""

_COUNT = struct.Struct("i")


def unacknowledged(end: Any) -> int | None:
    """Return how many of the bytes that the system has taken for a TCP connection are not acknowledged.

    None: the connection is broken or closed, or the system does not tell. ``end``: a socket, or what stands for it; it
    must be open, since another connection may have its number otherwise.
    """
    try:
        [left] = _COUNT.unpack(fcntl.ioctl(end.fileno(), termios.TIOCOUTQ, _COUNT.pack(0)))
        # Last: a reset may forget what was not acknowledged.
        return left if _state(end) in (_ESTABLISHED, _CLOSE_WAIT) else None
    except (AttributeError, OSError, ValueError):  # no socket, not TCP, or closed
        return None


def is_open(end: Any) -> bool:
    """Tell whether both sides of a TCP connection are open. False also if the system does not tell."""
    try:
        return _state(end) == _ESTABLISHED
    except (AttributeError, OSError, ValueError):
        return False


def _state(end: Any) -> int | None:
    return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] if _IS_TOLD else None


class Acknowledgement:
    """Waits for one acknowledgement. A client that takes too long is cut off, as one that takes a response slowly."""

    __slots__ = ("_cut_off", "_loop", "_pace", "_pause", "_received", "_timer", "_unacknowledged", "_window_ends")

    def __init__(self, unacknowledged: Callable[[], int | None], cut_off: Callable[[], None]) -> None:
        """``unacknowledged``: returns how many bytes are left; None if the connection is broken or that is not known.

        ``cut_off``: breaks the connection off.
        """
        self._unacknowledged = unacknowledged
        self._cut_off = cut_off
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
        left = self._unacknowledged()
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
                self._cut_off()
                return
        self._pause = min(2 * self._pause, MOST_PAUSE_SECONDS)
        self._timer = self._loop.call_later(self._pause, self._look_again)
