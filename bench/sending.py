"""Senders and readers against one server, alone and while cleanup erases."""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import ClientSession, TCPConnector

from bench import stores
from bench.figures import Figure, latencies, percentile, ratio, single, spread
from bench.process import Cleaning, Server
from conclave.actions.messages import append
from conclave.config.archive import ArchiveConfig
from conclave.store.engine.database import Database
from tests.support.client import Client

SENDERS, ROUNDS, ROUND_SECONDS = 64, 5, 2.0
QUIET, PAGE, PAGES = 1_000, 100, 1_000
"""Messages in each group, messages of a page, pages fetched."""

ERASURES, GROUPS, EXPIRED, LIVING = 3, 200, 100, 150
"""Stores, their groups that expire, and messages in each of these that do and do not."""

PURGED = 200_000
"""Messages of the group that expires at once."""

MOVED = 300_000
"""Messages that move to the archive, of all groups in turn."""

DAY = 86_400
PAUSE_SECONDS = 0.005


def throughput(folder: Path) -> list[Figure]:
    """One sender after another against 64 at once, and pages that the reader had before."""
    now = int(time.time())
    shape = stores.Shape(users=SENDERS, groups=8, members=SENDERS)
    store = stores.build(folder, "sql", now, shape, [now] * QUIET)
    with Server(store.config) as server:
        server.wait_for("cleanup_run")
        served = uvloop.run(_throughput(server, store))
    return [*served, *uvloop.run(_store_alone(store)), *_disk(folder)]


async def _throughput(server: Server, store: stores.Store) -> list[Figure]:
    alone, together = [], []
    every: list[float] = []
    async with _clients(server, store) as clients:
        for _ in range(ROUNDS):
            alone.append(len(await _send_for(clients[:1], store.groups)) / ROUND_SECONDS)
            took = await _send_for(clients, store.groups)
            every += took
            together.append(len(took) / ROUND_SECONDS)
        pages = [await _timed(_full_page(clients[0], store.groups[0], after)) for after in [QUIET - PAGE, *_places()]]
    return [
        spread("sends, one sender", alone, "/s"),
        spread(f"sends, {SENDERS} senders at once", together, "/s"),
        ratio("at once / one sender", together, alone),
        latencies(f"send, {SENDERS} at once", every),
        latencies(f"page of {PAGE} messages of {len(stores.BODY)} B", pages[1:]),
    ]


@asynccontextmanager
async def _clients(server: Server, store: stores.Store) -> AsyncIterator[list[Client]]:
    async with ClientSession(connector=TCPConnector(limit=0)) as http:
        yield [Client(http, server.url, token) for token in store.tokens]


async def _timed(request: Awaitable[object]) -> float:
    began = time.perf_counter()
    await request
    return time.perf_counter() - began


async def _send_for(clients: Sequence[Client], groups: Sequence[str]) -> list[float]:
    end = time.perf_counter() + ROUND_SECONDS

    async def one(n: int) -> list[float]:
        took = []
        while time.perf_counter() < end:
            took.append(await _timed(clients[n].send(groups[n % len(groups)], stores.BODY)))
        return took

    return [each for took in await asyncio.gather(*map(one, range(len(clients)))) for each in took]


async def _full_page(client: Client, group: str, after: int) -> None:
    if len((await client.get(f"/groups/{group}/messages", after=after, limit=PAGE))["messages"]) != PAGE:
        raise RuntimeError("not a full page")


def _places() -> list[int]:
    return [random.randrange(QUIET - PAGE) for _ in range(PAGES)]


async def _store_alone(store: stores.Store) -> list[Figure]:
    """The same writes without HTTP: what is left of batching's worth once a server is around the store."""
    database = await Database.open(store.config.database)

    async def rate(writers: int) -> float:
        end = time.perf_counter() + ROUND_SECONDS

        async def one() -> int:
            done = 0
            while time.perf_counter() < end:
                await database.write(append, store.creators[0], stores.BODY, 1, is_commit=False)
                done += 1
            return done

        return sum(await asyncio.gather(*(one() for _ in range(writers)))) / ROUND_SECONDS

    rates = [(await rate(1), await rate(SENDERS)) for _ in range(2)]
    await database.close()
    alone, together = zip(*rates, strict=True)
    return [
        spread("store alone: writes, one writer", alone, "/s"),
        spread(f"store alone: writes, {SENDERS} at once", together, "/s"),
        ratio("at once / one writer", together, alone),
    ]


def _disk(folder: Path) -> list[Figure]:
    took = []
    with (folder / "probe").open("wb", buffering=0) as file:
        for _ in range(200):
            file.write(os.urandom(4096))
            began = time.perf_counter()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - began)
    return [latencies("the disk alone: 4 KiB and fsync", took)]


def erasing(folder: Path) -> list[Figure]:
    """Two fifths of a store expire; one sender goes on meanwhile, in a group that keeps.

    The server sees today, where nothing is due; the run takes place most of a day later.
    """
    now = int(time.time())
    shape = stores.Shape(users=2, groups=GROUPS + 1, members=2, expiries=(*[DAY] * GROUPS, -1))
    seconds, quiet, busy = [], [], []
    for n in range(ERASURES):
        fresh = folder / str(n)
        fresh.mkdir()
        store = stores.build(fresh, "sql", now, shape, [now - DAY // 2] * EXPIRED + [now] * LIVING)
        before = store.config.database.stat().st_size / 1e6
        with Server(store.config) as server, Cleaning(store.config) as cleaning:
            server.wait_for("cleanup_run")
            each_quiet, each_busy, report = uvloop.run(_erasing(server, store, cleaning, now + DAY * 3 // 4))
        after = store.config.database.stat().st_size / 1e6
        if report["deleted"]["expired"] != GROUPS * EXPIRED:
            raise RuntimeError(f"deleted: {report['deleted']}")
        seconds.append(report["seconds"])
        quiet += each_quiet
        busy += each_busy
    return [
        spread(f"erasing {GROUPS * EXPIRED:,} of {GROUPS * (EXPIRED + LIVING):,} messages", seconds, "s"),
        spread("erased", [GROUPS * EXPIRED / each for each in seconds], "rows/s"),
        Figure("database file before, after", f"{before:.1f} MB, {after:.1f} MB"),
        latencies("send, before", quiet),
        latencies("send, while erasing", busy),
        ratio("p50 while erasing / before", [percentile(busy, 0.5)], [percentile(quiet, 0.5)]),
        ratio("p99 while erasing / before", [percentile(busy, 0.99)], [percentile(quiet, 0.99)]),
    ]


def purging(folder: Path) -> list[Figure]:
    """All of one large group expires at once; one sender goes on meanwhile, in another group."""
    now = int(time.time())
    store = stores.build(folder, "spark", now, stores.Shape(users=2, groups=2, members=2, expiries=(DAY, -1)), [])
    stores.fill(store, 0, [now - DAY // 2] * PURGED)
    with Server(store.config) as server, Cleaning(store.config) as cleaning:
        server.wait_for("cleanup_run")
        quiet, busy, report = uvloop.run(_erasing(server, store, cleaning, now + DAY * 3 // 4))
    if report["deleted"]["expired"] != PURGED:
        raise RuntimeError(f"deleted: {report['deleted']}")
    return [
        single(f"deleting {PURGED:,} messages of another group", report["seconds"], "s", most=60),
        latencies("send, before", quiet),
        latencies("send, while they go", busy),
        single("the longest that a send waited", max(busy) * 1000, "ms", most=100),
    ]


def moving(folder: Path) -> list[Figure]:
    """Older messages of all groups move to the archive; one sender goes on meanwhile."""
    now = int(time.time())
    sent = range(now - 30 * DAY, now - 30 * DAY + MOVED // GROUPS)
    store = stores.build(folder, "spark", now, stores.Shape(users=2, groups=GROUPS, members=2), sent)
    store = replace(store, config=replace(store.config, archive=ArchiveConfig(after=7 * DAY, margin=DAY)))
    with Server(store.config) as server, Cleaning(store.config) as cleaning:
        server.wait_for("cleanup_run")
        quiet, busy, report = uvloop.run(_erasing(server, store, cleaning, now))
    if report["archived"] != MOVED:
        raise RuntimeError(f"moved: {report['archived']:,}")
    return [
        single(f"moving {MOVED:,} messages, Java cold", report["seconds"], "s"),
        latencies("send, before", quiet),
        latencies("send, while they move", busy),
        single("the longest that a send waited", max(busy) * 1000, "ms", most=100),
    ]


async def _erasing(
    server: Server, store: stores.Store, cleaning: Cleaning, now: int
) -> tuple[list[float], list[float], dict[str, Any]]:
    async with _clients(server, store) as (sender, *_):

        async def send() -> float:
            await asyncio.sleep(PAUSE_SECONDS)
            return await _timed(sender.send(store.groups[-1], stores.BODY))

        quiet = [await send() for _ in range(500)]
        run = asyncio.create_task(asyncio.to_thread(cleaning.run, now))
        busy = []
        while not run.done():
            busy.append(await send())
    return quiet, busy, await run
