"""Connections that lose what comes to them, or break: what a bad network does, over loopback."""

import contextlib
import ctypes
import socket
import ssl
import struct
from types import TracebackType
from typing import Self

from tests.support.server import PATIENCE

_ATTACH_FILTER, _DETACH_FILTER = 26, 27
"""SO_ATTACH_FILTER and SO_DETACH_FILTER of Linux, which Python does not name."""

_NOTHING = struct.pack("HBBI", 6, 0, 0, 0)
"""A program of the packet filter: it admits nothing of any packet."""


class Lossy:
    """A client's connection. Not for the event loop: it blocks."""

    def __init__(self, port: int, *, secured: bool = False, buffer: int | None = None) -> None:
        """``buffer``: the system takes so many bytes for it, more or less."""
        self.end = socket.socket()
        self.end.settimeout(PATIENCE)
        if buffer:
            self.end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.end.connect(("127.0.0.1", port))
        if secured:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.end = context.wrap_socket(self.end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end.close()

    def lose(self) -> None:
        """Lose from now on whatever comes. The system acknowledges nothing of it."""
        program = ctypes.create_string_buffer(_NOTHING, len(_NOTHING))
        self.end.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))

    def mend(self) -> None:
        """Lose nothing any more. What was lost is sent again by the other side's system."""
        self.end.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)

    def say(self, request: bytes) -> None:
        self.end.sendall(request)

    def hear(self) -> bytes:
        """Return one answer, head and body. Raises OSError."""
        text = b""
        while (at := text.find(b"\r\n\r\n")) < 0:
            text += self._more()
        length = int(text[:at].lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(text) < at + 4 + length:
            text += self._more()
        return text

    def received(self, most: int) -> bytes:
        """Return up to so many bytes of what has come by now. Raises ConnectionError."""
        found = b""
        self.end.setblocking(False)
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            while len(found) < most and (more := self.end.recv(min(65_536, most - len(found)))):
                found += more
        return found

    def _more(self) -> bytes:
        found = self.end.recv(65_536)
        if not found:
            raise ConnectionResetError
        return found

    def reset(self) -> None:
        """Break the connection."""
        self.end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Not close: TLS would say good-bye, and another thread may be reading.
        with contextlib.suppress(OSError):
            socket.socket(fileno=self.end.detach()).close()

    def end_in_order(self) -> None:
        """Close the connection as programs do that have what they wanted; with TLS both sides say so."""
        if isinstance(self.end, ssl.SSLSocket):
            with contextlib.suppress(OSError):
                self.end = self.end.unwrap()
        self.end.close()
