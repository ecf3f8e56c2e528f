"""Clients that take what they asked for slowly, or not at all."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from tests.conftest import Running


@contextlib.asynccontextmanager
async def raw(running: Running, request: bytes) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Send a request over a connection of its own, which takes little before it is read from."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", running.server.port or 0))
    reader, writer = await asyncio.open_connection(sock=connection, limit=4096)
    try:
        writer.write(request)
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
