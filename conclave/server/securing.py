"""Makes the transport of a connection that is secured by TLS.

Where asyncio makes both layers at once, the transport below the TLS layer is hidden in it. Only that one knows what the
system has not taken yet.
"""

import asyncio
import socket
import ssl
from typing import cast

from conclave.server.connection import Connection


async def secure(connection: Connection, end: socket.socket, tls: ssl.SSLContext) -> None:
    """Do the TLS handshake on ``end``, an accepted socket, and begin ``connection``. Raises OSError.

    The client may take a minute for the handshake. If this raises or is cancelled, ``end`` is closed.
    """
    loop = asyncio.get_running_loop()
    below, early = await loop.connect_accepted_socket(_Early, end)
    try:
        loop.call_soon(early.hand_on, below)  # comes after the first step of start_tls, before more is read
        secured = await loop.start_tls(below, early, tls, server_side=True)
    except BaseException:
        below.abort()
        raise
    if secured is None:
        raise ConnectionAbortedError("the client is gone")
    secured.set_protocol(connection)
    early.successor, connection.below = connection, below
    connection.connection_made(secured)
    early.hand_on(secured)


class _Early(asyncio.Protocol):
    """Holds what comes before the TLS layer is there, and what comes from that before the connection is."""

    def __init__(self) -> None:
        self.successor: Connection | None = None
        self._held = b""

    def data_received(self, data: bytes) -> None:
        self._held += data

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection may have begun since this was on its way."""
        if self.successor:
            self.successor.connection_lost(exc)

    def hand_on(self, transport: asyncio.Transport) -> None:
        """Give what is held to the protocol that the transport has by now."""
        rest, self._held = self._held, b""
        while rest and not transport.is_closing():
            successor = cast(asyncio.BufferedProtocol, transport.get_protocol())
            buffer = memoryview(successor.get_buffer(len(rest)))
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            successor.buffer_updated(count)
            rest = rest[count:]
