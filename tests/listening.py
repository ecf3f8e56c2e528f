"""A client of the event stream."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import ClientResponse

from tests.client import API, Client

Heard = tuple[str, Any]


class Listener:
    """An open stream: what was heard comes as name and data; the name is "" where the stream gives none."""

    def __init__(self, response: ClientResponse) -> None:
        self.response = response
        self._heard: asyncio.Queue[Heard] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    async def next(self) -> Heard:
        return await asyncio.wait_for(self._heard.get(), 10)

    def waiting(self) -> list[Heard]:
        """What was heard and not taken yet."""
        return [self._heard.get_nowait() for _ in range(self._heard.qsize())]

    async def ended(self) -> None:
        """Wait until the server ends the stream."""
        await asyncio.wait_for(asyncio.shield(self._reading), 10)

    async def close(self) -> None:
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        self.response.close()

    async def _read(self) -> None:
        name = ""
        async for line in self.response.content:
            field, _, value = line.decode().strip().partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                self._heard.put_nowait((name, json.loads(value) if name else value))
                name = ""


@contextlib.asynccontextmanager
async def listening(client: Client, **query: str) -> AsyncIterator[Listener]:
    """Listen as the client's user while the block lasts."""
    headers = {"Authorization": f"Bearer {client.token}"}
    response = await client.http.get(f"{client.url}{API}/events", headers=headers, params=query)
    assert response.status == 200, await response.text()
    listener = Listener(response)
    try:
        yield listener
    finally:
        await listener.close()
