"""A link that breaks: a proxy that cuts half of all connections at random points."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

CUT_WITHIN = 3_000
"""A connection that is cut early is cut within so many bytes, of both directions together."""

LONGEST = 8_000
"""No connection carries more than so many bytes, so that there are always new ones."""


class BadLink:
    """Hands connections on to a server on loopback."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self._port = port
        self._chance = chance
        self._writers: set[asyncio.StreamWriter] = set()
        self.under_way: set[asyncio.Task[object]] = set()
        self.opened = 0
        self.cut_early = 0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection, until either side ends it or it is cut."""
        self.opened += 1
        task = asyncio.current_task()
        assert task
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)
        is_cut = self._chance.random() < 0.5
        self.cut_early += is_cut
        left = self._chance.randrange(CUT_WITHIN) if is_cut else self._chance.randrange(CUT_WITHIN, LONGEST)
        to_server: asyncio.StreamWriter | None = None
        self._writers.add(writer)
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
            self._writers.add(to_server)
            room = [left]
            both = [
                asyncio.create_task(self._copy(reader, to_server, room)),
                asyncio.create_task(self._copy(from_server, writer, room)),
            ]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        finally:
            for each_writer in (writer, to_server):
                if each_writer:
                    self._writers.discard(each_writer)
                    each_writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, room: list[int]) -> None:
        with contextlib.suppress(ConnectionError):
            while room[0] > 0 and (data := await reader.read(1_000)):
                writer.write(data[: room[0]])
                room[0] -= len(data)
                await writer.drain()

    def cut_all(self) -> None:
        """Cut what is open."""
        for writer in list(self._writers):
            writer.transport.abort()


@contextlib.asynccontextmanager
async def bad_link(url: str, chance: random.Random) -> AsyncIterator[tuple[str, BadLink]]:
    """Yield the address of a proxy before the server at ``url``, and the proxy."""
    link = BadLink(int(url.rpartition(":")[2]), chance)
    listening = await asyncio.start_server(link.carry, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", link
    finally:
        listening.close()
        link.cut_all()
        await asyncio.gather(*link.under_way, return_exceptions=True)
