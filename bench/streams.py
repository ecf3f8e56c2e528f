"""Event streams: many that idle, one that hears, all that hear, others who send meanwhile, a stop with many open."""

import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, cast

import uvloop
from aiohttp import ClientSession

from bench import stores
from bench.figures import Figure, at_least, latencies, percentile, single, spread
from bench.process import Server, resident_mb
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from conclave.system.process_limits import raise_file_limit
from tests.support.client import API, Client, encode

STREAMS, STOPPED, STOPS = 2_000, 1_000, 3
"""Open at once; open when a server is told to stop; stops with each engine."""

IDLE_SECONDS = 25
"""Each stream has had two keep-alives then."""

SENDS, FAN_OUTS = 500, 20
"""To one stream, over more than the time between two keep-alives; to all."""

CROWD, HEARING = 5_000, 1_000
"""Open at once in another server, and how many of these hear what is sent to one group."""

SENDERS, WINDOWS, WINDOW_SECONDS, EVERY_SECONDS = 16, 7, 2.0, 0.2
"""Who sends to groups of two; how often and how long that is measured alone, and while the large group hears of a
message at this interval.
"""

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


class Sender(asyncio.Protocol):
    """Sends the same message again and again, by a bare socket, and counts the answers."""

    def __init__(self, client: Client, group: str) -> None:
        body = json.dumps({"mls_message": encode(stores.BODY)}).encode()
        head = f"POST {API}/groups/{group}/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body
        self._answer = b""
        self.answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if self._answer.endswith(b"}"):
            if not self._answer.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(self._answer.decode())
            self._answer = b""
            self.answered += 1
            self.transport.write(self._request)


def many(folder: Path) -> list[Figure]:
    """2,000 streams of as many users in one server, 5,000 in another, then stops of servers that have 1,000 open."""
    raise_file_limit()
    (folder / "crowd").mkdir()
    figures = _crowded(folder / "crowd")
    store = stores.build(folder, "sql", int(time.time()), stores.Shape(STREAMS + 1, 1, STREAMS + 1), [])
    with Server(store.config) as server:
        server.wait_for("cleanup_run")
        figures += uvloop.run(_serving(server, store))
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
        to_all = [(await _heard_by(streams, sender, store.groups[0]))[0] for _ in range(FAN_OUTS)]
        to_one = [(await _heard_by(streams[:1], sender, pair))[0] for _ in range(SENDS)]
    return [
        single(f"resident: server, {STREAMS:,} idle streams", idle, "MB", most=200),
        single("a stream", (idle - before) / STREAMS * 1000, "KB", most=15),
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


async def _heard_by(streams: Sequence[Stream], sender: Client, group: str) -> tuple[float, float]:
    """Send a message; return the seconds to the arrival of the last event: from the request, and from the answer."""
    await asyncio.sleep(PAUSE_SECONDS)
    for each in streams:
        each.listen()
    began = time.perf_counter()
    await sender.send(group, stores.BODY)
    answered = time.perf_counter()
    last = max(await asyncio.wait_for(asyncio.gather(*(each.heard for each in streams)), PATIENCE_SECONDS))
    return last - began, max(0.0, last - answered)


def _crowded(folder: Path) -> list[Figure]:
    store = stores.build(folder, "sql", int(time.time()), stores.Shape(CROWD + 1, 1, HEARING + 1), [])
    with Server(store.config) as server:
        server.wait_for("cleanup_run")
        return uvloop.run(_crowd(server, store))


async def _crowd(server: Server, store: stores.Store) -> list[Figure]:
    pid, group = server.process.pid, store.groups[0]
    async with ClientSession() as http:
        speaker, *listeners = [Client(http, server.url, token) for token in store.tokens]
        others = [(each, await _pair(each, with_)) for each, with_ in _last_pairs(listeners)]
        before = resident_mb(pid)
        began = time.perf_counter()
        streams = await _open(server, listeners)
        opening = time.perf_counter() - began
        await asyncio.sleep(IDLE_SECONDS)
        idle = resident_mb(pid)
        hearing = streams[:HEARING]
        late = [(await _heard_by(hearing, speaker, group))[1] for _ in range(FAN_OUTS)]
        alone, beside, late_beside = await _windows(server, others, hearing, speaker, group)
    kept = statistics.median(with_ / without for with_, without in zip(beside, alone, strict=True))
    return [
        single(f"opening {CROWD:,} streams, {OPENED_AT_ONCE} at once", opening, "s"),
        single(f"resident: server, {CROWD:,} idle streams", idle, "MB"),
        single(f"a stream of {CROWD:,}", (idle - before) / CROWD * 1000, "KB", most=15),
        spread(f"answer to the last of {HEARING:,} events", [each * 1000 for each in late], "ms", most=100),
        spread(f"the same, {SENDERS} others sending", [each * 1000 for each in late_beside], "ms", most=100),
        spread(f"sends of {SENDERS} to other groups, alone", alone, "/s"),
        spread(f"the same, {HEARING:,} hear every {EVERY_SECONDS * 1000:.0f} ms", beside, "/s"),
        at_least("with / without, median of each pair", kept, "times", 0.8),
    ]


def _last_pairs(clients: Sequence[Client]) -> list[tuple[Client, Client]]:
    """Those who send to other groups, each with a member who hears it: none of them is in the large group."""
    last = clients[-2 * SENDERS :]
    return list(zip(last[::2], last[1::2], strict=True))


async def _pair(one: Client, other: Client) -> str:
    group = await one.create_group(f"of{one.token[:16]}")
    await other.join(group)
    return group


async def _windows(
    server: Server, others: Sequence[tuple[Client, str]], hearing: Sequence[Stream], speaker: Client, group: str
) -> tuple[list[float], list[float], list[float]]:
    """Return the rates of the other senders, alone and beside the large group, and how late that heard."""
    alone: list[float] = []
    beside: list[float] = []
    late: list[float] = []
    async with _sending(server, others) as senders:
        await _rate(senders)
        for _ in range(WINDOWS):
            alone.append(await _rate(senders))
            speaking = asyncio.create_task(_speak(hearing, speaker, group))
            beside.append(await _rate(senders))
            late += await speaking
    return alone, beside, late


@contextlib.asynccontextmanager
async def _sending(server: Server, others: Sequence[tuple[Client, str]]) -> AsyncIterator[list[Sender]]:
    senders = [Sender(client, group) for client, group in others]
    port = int(server.url.rpartition(":")[2])
    for each in senders:
        await asyncio.get_running_loop().create_connection(lambda each=each: each, "127.0.0.1", port)  # type: ignore[misc]
    try:
        yield senders
    finally:
        for each in senders:
            each.transport.abort()


async def _rate(senders: Sequence[Sender]) -> float:
    began, before = time.perf_counter(), sum(each.answered for each in senders)
    await asyncio.sleep(WINDOW_SECONDS)
    return (sum(each.answered for each in senders) - before) / (time.perf_counter() - began)


async def _speak(hearing: Sequence[Stream], speaker: Client, group: str) -> list[float]:
    """Send to the large group every EVERY_SECONDS, for a window."""
    late, end = [], time.perf_counter() + WINDOW_SECONDS
    while (began := time.perf_counter()) < end:
        late.append((await _heard_by(hearing, speaker, group))[1])
        await asyncio.sleep(max(0.0, min(end, began + EVERY_SECONDS) - time.perf_counter()))
    return late


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
