"""A link to a server that tells another time: the header Date is the test's, or left out."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate

_DATE = re.compile(rb"\r\nDate: [^\r]*")


class DatingLink:
    """Hands connections on to a server on loopback, and writes its answers' dates."""

    def __init__(self, port: int, date: Callable[[], int]) -> None:
        """``date``: the Unix second that it is."""
        self._port = port
        self._date = date
        self.shift: int | None = 0
        """By how many seconds the server is wrong; None: it tells no time."""
        self.told = 0
        """How many answers have gone through."""
        self.under_way: set[asyncio.Task[object]] = set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection, until either side ends it."""
        task = asyncio.current_task()
        assert task
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        both = [
            asyncio.create_task(self._copy(reader, to_server, lambda data: data)),
            asyncio.create_task(self._copy(from_server, writer, self._dated)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (writer, to_server):  # before anything is awaited: the end of a test may cancel that
                each.transport.abort()
            for copying in both:
                copying.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    def _dated(self, data: bytes) -> bytes:
        told = b"" if self.shift is None else f"\r\nDate: {formatdate(self._date() + self.shift, usegmt=True)}".encode()
        found, count = _DATE.subn(told, data)
        self.told += count
        return found

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Callable[[bytes], bytes]
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(change(data))
                await writer.drain()


@contextlib.asynccontextmanager
async def dating_link(url: str, date: Callable[[], int]) -> AsyncIterator[tuple[str, DatingLink]]:
    """Yield the address of a proxy before the server at ``url``, and the proxy."""
    link = DatingLink(int(url.rpartition(":")[2]), date)
    listening = await asyncio.start_server(link.carry, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", link
    finally:
        listening.close()
        for each in list(link.under_way):
            each.cancel()
        await asyncio.gather(*link.under_way, return_exceptions=True)
