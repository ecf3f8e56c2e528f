"""Event streams: many that idle, one that hears, all that hear, and a stop with many open."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, cast

import uvloop
from aiohttp import ClientSession

from bench import stores
from bench.figures import Figure, latencies, percentile, single, spread
from bench.process import Server, resident_mb
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from conclave.server.listen import raise_file_limit
from tests.support.client import Client

STREAMS, STOPPED, STOPS = 2_000, 1_000, 3
"""Open at once; open when a server is told to stop; stops with each engine."""

IDLE_SECONDS = 25
"""Each stream has had two keep-alives then."""

SENDS, FAN_OUTS = 500, 20
"""To one stream, over more than the time between two keep-alives; to all."""

PAUSE_SECONDS = 0.02
OPENED_AT_ONCE = 100
PATIENCE_SECONDS = 30.0


class Stream(asyncio.Protocol):
    """A client that listens with a bare socket: 2,000 of a real one would cost more than what is measured."""

    def __init__(self, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._request = request
        self.counted_in: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.listen()

    @classmethod
    async def open(cls, server: Server, client: Client) -> Self:
        _, stream = await asyncio.get_running_loop().create_connection(
            lambda: cls(client.raw_get("/events")), "127.0.0.1", int(server.url.rpartition(":")[2])
        )
        await asyncio.wait_for(stream.counted_in, PATIENCE_SECONDS)
        return stream

    def listen(self) -> None:
        """Forget what was heard before."""
        self.heard: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's only look like one
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if b"event: " in data and not self.heard.done():
            self.heard.set_result(time.perf_counter())
        if b": keep-alive" in data and not self.counted_in.done():
            self.counted_in.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def many(folder: Path) -> list[Figure]:
    """2,000 streams of as many users in one server, then stops of servers that have 1,000 open."""
    raise_file_limit()
    store = stores.build(folder, "sql", int(time.time()), stores.Shape(STREAMS + 1, 1, STREAMS + 1), [])
    with Server(store.config) as server:
        server.wait_for("cleanup_run")
        figures = uvloop.run(_serving(server, store))
    for engine in ("sql", "spark"):
        stops = [_stop(replace(store.config, cleanup=CleanupConfig(engine=engine)), store) for _ in range(STOPS)]
        figures.append(spread(f"SIGTERM to exit, {STOPPED:,} open streams, {engine} engine", stops, "s", most=2))
    return figures


async def _serving(server: Server, store: stores.Store) -> list[Figure]:
    pid = server.process.pid
    before = resident_mb(pid)
    async with ClientSession() as http:
        sender, *listeners = [Client(http, server.url, token) for token in store.tokens]
        pair = await sender.create_group("two")
        await listeners[0].join(pair)
        began = time.perf_counter()
        streams = await _open(server, listeners)
        opening = time.perf_counter() - began
        await asyncio.sleep(IDLE_SECONDS)
        idle = resident_mb(pid)
        to_all = [await _heard_by(streams, sender, store.groups[0]) for _ in range(FAN_OUTS)]
        to_one = [await _heard_by(streams[:1], sender, pair) for _ in range(SENDS)]
    return [
        single(f"resident: server, {STREAMS:,} idle streams", idle, "MB", most=200),
        single("a stream", (idle - before) / STREAMS * 1000, "KB"),
        single(f"opening {STREAMS:,} streams, {OPENED_AT_ONCE} at once", opening, "s"),
        spread(f"send to the last of {STREAMS:,} events", to_all, "s"),
        latencies("send to the event on the one stream", to_one),
        single("its median", percentile(to_one, 0.5) * 1000, "ms", most=50),
    ]


async def _open(server: Server, clients: Sequence[Client]) -> list[Stream]:
    streams: list[Stream] = []
    for n in range(0, len(clients), OPENED_AT_ONCE):
        streams += await asyncio.gather(*(Stream.open(server, each) for each in clients[n : n + OPENED_AT_ONCE]))
    return streams


async def _heard_by(streams: Sequence[Stream], sender: Client, group: str) -> float:
    """Send a message; return the seconds from the request to the arrival of the last event."""
    await asyncio.sleep(PAUSE_SECONDS)
    for each in streams:
        each.listen()
    began = time.perf_counter()
    await sender.send(group, stores.BODY)
    return max(await asyncio.wait_for(asyncio.gather(*(each.heard for each in streams)), PATIENCE_SECONDS)) - began


def _stop(config: Config, store: stores.Store) -> float:
    with Server(config) as server:
        server.wait_for("cleanup_run")
        return uvloop.run(_stopping(server, store))


async def _stopping(server: Server, store: stores.Store) -> float:
    async with ClientSession() as http:
        streams = await _open(server, [Client(http, server.url, token) for token in store.tokens[:STOPPED]])
        gone = await asyncio.to_thread(server.stop)
        await asyncio.wait_for(asyncio.gather(*(each.ended for each in streams)), PATIENCE_SECONDS)
    if server.process.returncode:
        raise RuntimeError(f"exit status {server.process.returncode}")
    return gone
