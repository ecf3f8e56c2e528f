"""Secures a connection by TLS after it was let in.

Where asyncio listens with TLS itself, a connection that is refused is closed only after its handshake, for which a
client may take a minute: silent ones would use up the descriptors that the server keeps for itself.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from conclave.server.connection import Connection


class Securing(asyncio.Protocol):
    """A connection that was let in and has yet to secure itself."""

    def __init__(
        self,
        connection: Connection,
        tls: ssl.SSLContext,
        most_files: int,
        tasks: set[asyncio.Task[None]],
        is_stopping: Callable[[], bool],
    ) -> None:
        """``connection``: begins after the handshake. ``tasks``: has the handshake while it lasts, to be cancelled.

        ``most_files``: the connection ends if it would get a descriptor with this number, or a higher one. So it does
        if the server ``is_stopping`` by then.
        """
        self._connection = connection
        self._tls = tls
        self._most_files = most_files
        self._tasks = tasks
        self._is_stopping = is_stopping

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake, with a descriptor of its own: by ``start_tls`` what has come already would be lost."""
        end: socket.socket = transport.get_extra_info("socket")
        with suppress(OSError):  # no descriptor is left, or the client is gone: it is turned away
            mine = socket.socket(end.family, end.type, end.proto, os.dup(end.fileno()))
            if mine.fileno() < self._most_files and not self._is_stopping():
                self._begin(mine)
            else:
                mine.close()
        cast(asyncio.Transport, transport).abort()

    def _begin(self, end: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._secure(end))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task.cancelled():  # perhaps before it began
                end.close()

        task.add_done_callback(ended)

    async def _secure(self, end: socket.socket) -> None:
        end.settimeout(0)
        with suppress(OSError):  # the client is gone, speaks no TLS, or has taken too long
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self._connection, end, ssl=self._tls)
