"""Pages of a server whose older messages are in an archive."""

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import uvloop
from aiohttp import ClientSession, TCPConnector

from bench import archives, stores
from bench.figures import Figure, latencies, percentile, single
from bench.process import Server, resident_mb
from conclave.archive.layout import checksum
from tests.support.client import Client

MESSAGES, GROUPS = 10_000_000, 2_000
DENSE = MESSAGES // GROUPS
SPARSE = archives.DAYS
"""Messages of the group that has one a day."""

RECENT, WITH_RECENT = 60, 200
"""Messages that are still in the hot store, and the groups that have any."""

PAGE, PAGES, RANDOM_PAGES, PURGES = 100, 300, 1_000, 5
READERS = 4
"""Who read one page after the other, of the archive or of the hot store, while others read what is new."""

SPARSE_GROUP, PURGED_GROUP, BUSY_GROUP, GAPPY_GROUP = GROUPS // 2, GROUPS - 1, WITH_RECENT, GROUPS // 3

EACH_GONE = 10
"""Every tenth message of one group is gone, so that a page of it has gaps."""


def pages(folder: Path) -> list[Figure]:
    now = int(time.time())
    store = stores.build(folder, "sql", now, stores.Shape(users=1, groups=GROUPS, members=1), [])
    counts = [DENSE] * GROUPS
    counts[SPARSE_GROUP] = SPARSE
    archive = archives.Archive(store, counts, now)
    archive.build()
    archive.thin(GAPPY_GROUP, EACH_GONE)
    for group in range(WITH_RECENT):
        stores.fill(store, group, [now] * RECENT)
    stores.fill(store, BUSY_GROUP, [now] * DENSE)
    with Server(store.config) as server:
        server.wait_for("cleanup_unavailable")  # the SQL engine leaves an archive alone: nothing runs meanwhile
        return [
            single("archive on disk", archives.size_mb(archive.path), "MB"),
            *uvloop.run(_pages(server, store, archive)),
        ]


async def _pages(server: Server, store: stores.Store, archive: archives.Archive) -> list[Figure]:
    chance = random.Random(1)
    figures = [single("resident: server, before the first page", resident_mb(server.process.pid), "MB")]

    def note(what: str) -> None:
        figures.append(single(f"resident: server, after {what}", resident_mb(server.process.pid), "MB", most=260))

    async with ClientSession(connector=TCPConnector(limit=1 + READERS)) as http:
        client = Client(http, server.url, store.tokens[0])

        async def across() -> None:
            await _full(client, store.groups[chance.randrange(WITH_RECENT)], DENSE - PAGE + RECENT // 2, PAGE)

        async def old() -> None:
            await _full(client, store.groups[_dense(chance)], chance.randrange(DENSE - PAGE), PAGE)

        async def sparse() -> None:
            await _full(client, store.groups[SPARSE_GROUP], chance.randrange(SPARSE - PAGE), PAGE)

        async def gappy() -> None:
            after = chance.randrange((DENSE - 2 * PAGE) // EACH_GONE) * EACH_GONE
            numbers = [n for n in range(after + 1, after + PAGE + EACH_GONE + 2) if n % EACH_GONE]
            await _exactly(client, store.groups[GAPPY_GROUP], after, numbers[:PAGE])

        async def recent() -> None:
            await _full(client, store.groups[chance.randrange(WITH_RECENT)], DENSE, RECENT)

        async def busy() -> None:
            await _full(client, store.groups[BUSY_GROUP], DENSE + chance.randrange(DENSE - PAGE), PAGE)

        figures += _judged("page across the border", await _timed(across, PAGES), 40)
        figures += _judged("page from the archive", await _timed(old, PAGES), None)
        figures.append(single(f"to check the checksums of {PAGE} messages", _checking() * 1000, "ms"))
        figures += _judged("page of one message a day", await _timed(sparse, PAGES), 80)
        figures += _judged("page with gaps", await _timed(gappy, PAGES), None)
        figures += _judged("page from the hot store", await _timed(recent, PAGES), None)
        note("these pages")
        figures += _judged("page across the border, purges between", await _purging(across, archive, store), 40)
        await _timed(old, RANDOM_PAGES)
        note(f"{RANDOM_PAGES} random pages")
        for what, ask in (("hot store", busy), ("archive", old)):
            reading = [asyncio.create_task(_forever(ask)) for _ in range(READERS)]
            beside = await _timed(recent, PAGES)
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
            figures += _judged(f"page from the hot store, beside {READERS} readers of the {what}", beside, None)
        note(f"{READERS} readers at once")
    return figures


async def anywhere(server: Server, token: str, groups: Sequence[str], numbers: range, times: int) -> list[float]:
    """Return the seconds of pages from anywhere in the archive, where it has the messages ``numbers`` of ``groups``."""
    chance = random.Random(1)
    async with ClientSession() as http:
        client = Client(http, server.url, token)

        async def ask() -> None:
            await _full(client, chance.choice(groups), chance.choice(numbers[: -PAGE - 1]), PAGE)

        return await _timed(ask, times)


def _checking() -> float:
    """Return the seconds that it takes to check the messages of a page."""
    body, sender = os.urandom(archives.BODY_BYTES), os.urandom(16)
    began = time.perf_counter()
    for number in range(PAGE * PAGES):
        checksum(1, number, sender, number, body, is_commit=False)
    return (time.perf_counter() - began) / PAGES


def _dense(chance: random.Random) -> int:
    return chance.choice([n for n in range(GROUPS) if n not in (SPARSE_GROUP, PURGED_GROUP, GAPPY_GROUP)])


async def _full(client: Client, group: str, after: int, count: int) -> None:
    await _exactly(client, group, after, [*range(after + 1, after + count + 1)])


async def _exactly(client: Client, group: str, after: int, numbers: list[int]) -> None:
    page = await client.get(f"/groups/{group}/messages", after=after, limit=len(numbers))
    if [each["sequence_num"] for each in page["messages"]] != numbers:
        raise RuntimeError(f"page of {len(page['messages'])} messages, not the {len(numbers)} after {after}")


async def _timed(ask: Callable[[], Awaitable[None]], times: int) -> list[float]:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        await ask()
        took.append(time.perf_counter() - began)
    return took


async def _forever(ask: Callable[[], Awaitable[None]]) -> None:
    while True:
        await ask()


async def _purging(ask: Callable[[], Awaitable[None]], archive: archives.Archive, store: stores.Store) -> list[float]:
    """Rewrite the files of a group that is not asked for, again and again."""
    took = []
    for n in range(PURGES):
        key = store.creators[PURGED_GROUP].group.group_key
        below = archive.first_of(PURGED_GROUP, archives.DAYS - PURGES + n)
        await asyncio.to_thread(archive.purge, f"group_key = {key} AND sequence_num < {below}")
        took += await _timed(ask, PAGES // PURGES)
    return took


def _judged(what: str, seconds: list[float], most: float | None) -> list[Figure]:
    if most is None:
        return [latencies(what, seconds)]
    return [latencies(what, seconds), single(f"{what}: p95", percentile(seconds, 0.95) * 1000, "ms", most=most)]
