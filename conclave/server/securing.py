"""Secures a connection by TLS after it was let in.

Where asyncio listens with TLS itself, a connection that is refused is closed only after its handshake, for which a
client may take a minute: silent ones would use up the descriptors that the server keeps for itself. And the transport
below the TLS layer would be hidden in it: only that knows what the system has not taken yet.
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from conclave.server.connection import Connection


class Securing(asyncio.Protocol):
    """A connection that was let in and has yet to secure itself. It holds what comes too early for its successors."""

    def __init__(
        self,
        connection: Connection,
        tls: ssl.SSLContext,
        tasks: set[asyncio.Task[None]],
        is_stopping: Callable[[], bool],
    ) -> None:
        """``connection``: begins after the handshake. ``tasks``: has the handshake while it lasts, to be cancelled.

        The connection ends if the server ``is_stopping`` by then.
        """
        self._connection = connection
        self._tls = tls
        self._tasks = tasks
        self._is_stopping = is_stopping
        self._early = b""
        self._has_begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        below = cast(asyncio.Transport, transport)
        if self._is_stopping():
            below.abort()
            return
        task = asyncio.get_running_loop().create_task(self._secure(below))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task.cancelled():  # perhaps before it began
                below.abort()

        task.add_done_callback(ended)

    def data_received(self, data: bytes) -> None:
        """Hold what comes before the TLS layer is there, and what comes from that before the connection is."""
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection may have begun since this was on its way."""
        if self._has_begun:
            self._connection.connection_lost(exc)

    async def _secure(self, below: asyncio.Transport) -> None:
        loop, secured = asyncio.get_running_loop(), None
        if not below.is_closing():
            loop.call_soon(self._hand_on, below)  # comes after the first step of start_tls, before more is read
            with suppress(OSError):  # the client is gone, speaks no TLS, or has taken too long
                secured = await loop.start_tls(below, self, self._tls, server_side=True)
        if secured is None:
            below.abort()
            return
        secured.set_protocol(self._connection)
        self._has_begun, self._connection.below = True, below
        self._connection.connection_made(secured)
        self._hand_on(secured)

    def _hand_on(self, transport: asyncio.Transport) -> None:
        """Have the protocol that the transport has by now get what came too early for it."""
        rest, self._early = self._early, b""
        while rest and not transport.is_closing():
            successor = cast(asyncio.BufferedProtocol, transport.get_protocol())
            buffer = memoryview(successor.get_buffer(len(rest)))
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            successor.buffer_updated(count)
            rest = rest[count:]
