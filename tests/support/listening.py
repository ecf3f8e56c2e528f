"""A client of the event stream."""

import asyncio
import contextlib
import json
import socket
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any, TypeVar
from uuid import UUID

from aiohttp import ClientResponse

from conclave.events import Announcement, Event, Events
from conclave.wire.stream_connection import StreamConnection as Connection
from tests.support.client import API, Client
from tests.support.protobuf import ProtobufClient, decode
from tests.support.server import PATIENCE, until

Heard = tuple[str, Any]
T = TypeVar("T")

BELL = "bell"
"""The user whose messages tell an audience that all before them has arrived."""


class StreamConnection:
    """An open stream: what was heard comes as name and data; the name is "" where the stream gives none."""

    def __init__(self, response: ClientResponse) -> None:
        self.response = response
        self._heard: asyncio.Queue[Heard] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    async def next(self) -> Heard:
        return await asyncio.wait_for(self._heard.get(), PATIENCE)

    async def next_or_end(self) -> Heard:
        """As ``next``; without name and data if the stream ends before."""
        taking = asyncio.create_task(self._heard.get())
        await asyncio.wait({taking, self._reading}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if not taking.done():
            taking.cancel()
            assert self.has_ended, "neither news nor the end"
            return "", ""
        return taking.result()

    @property
    def has_ended(self) -> bool:
        return self._reading.done()

    @property
    def is_empty(self) -> bool:
        return self._heard.empty()

    def waiting(self) -> list[Heard]:
        """What was heard and not taken yet."""
        return [self._heard.get_nowait() for _ in range(self._heard.qsize())]

    async def ended(self) -> None:
        """Wait until the server ends the stream."""
        await asyncio.wait_for(asyncio.shield(self._reading), PATIENCE)

    async def close(self) -> None:
        self._reading.cancel()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading
        finally:
            self.response.close()  # also where the server was killed

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
async def listening(client: Client, **query: str) -> AsyncIterator[StreamConnection]:
    """Listen as the client's user while the block lasts."""
    headers = {"Authorization": f"Bearer {client.token}"}
    response = await client.http.get(f"{client.url}{API}/events", headers=headers, params=query)
    assert response.status == 200, await response.text()
    listener = StreamConnection(response)
    try:
        yield listener
    finally:
        await listener.close()


class Audience:
    """Users who listen, each on a stream in JSON and on one in protobuf.

    They are members of a group where somebody rings a bell: events come in order, so whoever hears it has heard all
    that was published before.
    """

    def __init__(self, bell: Client, group: str) -> None:
        self._bell = bell
        self._group = group
        self._streams: list[tuple[str, StreamConnection]] = []

    def add(self, username: str, stream: StreamConnection) -> None:
        self._streams.append((username, stream))

    async def heard(self) -> dict[str, list[Heard]]:
        """What each user has heard since the last time; who has heard nothing is not there.

        Streams that have ended may end without the bell.
        """
        ringing = await self._bell.send(self._group)
        by_stream: dict[str, list[list[Heard]]] = defaultdict(list)
        for username, stream in self._streams:
            heard: list[Heard] = []
            async for name, values in _until_end(stream):
                if values.get("group_id") != self._group:
                    heard.append((name, values))
                elif values.get("sequence_num") == ringing:
                    break
            by_stream[username].append(heard)
        for username, streams in by_stream.items():
            assert all(each == streams[0] for each in streams), f"{username} hears the same on all streams: {streams}"
        return {username: streams[0] for username, streams in by_stream.items() if streams[0]}

    def ended(self, username: str) -> bool:
        """Whether all of a user's streams have ended; to be asked after ``heard``."""
        return all(stream.has_ended for name, stream in self._streams if name == username)


async def _until_end(stream: StreamConnection) -> AsyncIterator[Heard]:
    """Take what the stream has to tell, as names and values whatever its format, until it ends."""
    while not (stream.has_ended and stream.is_empty):
        name, data = await stream.next_or_end()
        if name:
            yield name, data
        elif data:
            [(name, values)] = decode("ServerEvent", bytes.fromhex(data)).items()
            yield name, values


@contextlib.asynccontextmanager
async def audience(bell: Client, *listeners: Client) -> AsyncIterator[Audience]:
    """Have users listen while the block lasts; ``bell`` is none of them."""
    group = await bell.create_group(BELL)
    async with contextlib.AsyncExitStack() as stack:
        gathered = Audience(bell, group)
        for listener in listeners:
            await listener.join(group)
            username = (await listener.get("/me"))["username"]
            phone = ProtobufClient(listener.http, listener.url)
            await phone.login(username)
            for client in (listener, phone):
                gathered.add(username, await stack.enter_async_context(listening(client)))
        yield gathered


@contextlib.asynccontextmanager
async def deaf(client: Client) -> AsyncIterator[asyncio.StreamReader]:
    """Open a stream with small buffers, of which nothing is read before somebody reads."""
    bare = socket.socket()
    bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    bare.connect(("127.0.0.1", int(client.url.rpartition(":")[2])))
    reader, writer = await asyncio.open_connection(sock=bare, limit=16)
    writer.write(client.raw_get("/events"))
    try:
        yield reader
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def deleted(number: int, *recipients: bytes) -> Announcement:
    """Return the news that a group is gone whose id is ``number``."""
    return Announcement(frozenset(recipients), Event("group_deleted", {"group_id": number.to_bytes(16)}))


async def open_stream(events: Events, client: Client) -> Connection:
    """Wait until a user has a stream whose connection is taken over, and return it."""

    def find() -> Connection | None:
        of_user = events.streams_by_user.get(UUID(client.user_id).bytes, {})
        return next((each for each in of_user if isinstance(each, Connection) and each._transport), None)

    found = await until(find)
    assert found
    return found
