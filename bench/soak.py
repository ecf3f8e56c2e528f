"""A server for hours, with all that it has to do at once: what grows in memory, in descriptors and on the disk.

Streams, senders, readers and churn go on; a cleanup run by Spark comes every 20 s, erases and moves to the archive.
All that is sent lives for ten minutes at most, so that after the first of them nothing has to grow but the log and
what is kept by design: receipts, and the audit log. ``CONCLAVE_BENCH_SOAK`` sets the minutes.
"""

import asyncio
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import uvloop
from aiohttp import ClientSession, TCPConnector

from bench import stores
from bench.curves import renew
from bench.figures import Figure, number, single, spread
from bench.plots import Axis, lines
from bench.process import Server, descendants, name, resident_mb
from bench.streams import Stream
from conclave.retention.policy import AFTER_FETCH
from conclave.system.process_limits import raise_file_limit
from tests.support.client import PASSWORD, Client

MINUTES = float(os.environ.get("CONCLAVE_BENCH_SOAK", "180"))
SETTLED = 1 / 3
"""What the first third shows is not counted: caches fill, Java compiles, the first messages live."""

USERS, GROUPS, MEMBERS = 400, 100, 8
LIFETIMES = (45, AFTER_FETCH, 180, 600)
"""Of the groups, seconds. The messages of the last two move to the archive, which they reach after 30 s."""

STREAMS, SENDERS, READERS = 300, 8, 8
SENDS_A_SECOND, PAGES_A_SECOND = 40, 80
BODIES = (50, 4_000)
"""Least and most bytes of a body, each as likely as the other."""

CHURN_SECONDS = 2.0
"""How often a stream ends and another begins, a session too, and a group is made, spoken in and deleted."""

LOOK_SECONDS = 10.0
DRAWN = 100
"""A line of the plot has at most 100 points."""

INTERVAL = "20s"
SETTINGS = """\
[archive]
after = "30s"
margin = "30s"
[limits]
login_failures_per_address = 10000
registrations_per_address = 10000
"""


@dataclass
class Looks:
    """What was found at each look: by name, the seconds since the beginning and the value then."""

    found: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, at: float, values: Mapping[str, float]) -> None:
        for what, value in values.items():
            self.found.setdefault(what, []).append((at, value))

    def points(self, what: str) -> list[tuple[float, float]]:
        return self.found[what]

    def _settled(self, what: str) -> list[tuple[float, float]]:
        last = max(at for points in self.found.values() for at, _ in points)
        return [(at, value) for at, value in self.found[what] if at >= last * SETTLED]

    def an_hour(self, what: str) -> float:
        """By how much a value grows in an hour, by the least squares."""
        points = self._settled(what)
        return statistics.linear_regression(*zip(*points, strict=True)).slope * 3600

    def halves(self, what: str) -> tuple[float, float]:
        """The medians of the two halves of what is counted."""
        values = [value for _, value in self._settled(what)]
        return statistics.median(values[: len(values) // 2]), statistics.median(values[len(values) // 2 :])

    def most(self, what: str) -> float:
        return max(value for _, value in self.found[what])


def hours(folder: Path) -> list[Figure]:
    """Have all go on for MINUTES, and look every 10 s."""
    raise_file_limit()
    shape = stores.Shape(USERS, GROUPS, MEMBERS, expiries=LIFETIMES)
    store = stores.build(folder, "spark", int(time.time()), shape, [])
    with Server(store.config, SETTINGS, INTERVAL) as server:
        server.wait_for("cleanup_run")
        looks, done = uvloop.run(_Soak(server, store).go_on())
    runs = [each for each in server.events() if each["event"] == "cleanup_run"]
    if failed := [each["error"] for each in runs if each["error"]]:
        raise RuntimeError(f"{len(failed)} of {len(runs)} runs failed: {failed[0]}")
    renew("soak", _plot(looks))
    return [
        *(figure for what in looks.found for figure in _growth(looks, what)),
        *(single(what, number, "") for what, number in done.items()),
        single("runs", len(runs), ""),
        single("messages erased", sum(sum(each["deleted"].values()) for each in runs), ""),
        single("messages moved", sum(each["archived"] for each in runs), ""),
        spread("processor time of a run", [each["cpu_seconds"] for each in runs], "s"),
    ]


class _Soak:
    """All that goes on at a server at the same time."""

    def __init__(self, server: Server, store: stores.Store) -> None:
        self._server = server
        self._store = store
        self._dice = random.Random(1)
        self._last = [0] * GROUPS
        """The highest number of each group that was answered."""
        self._done: Counter[str] = Counter()
        self._streams: list[tuple[Client, Stream]] = []
        self._began = time.monotonic()
        self.looks = Looks()

    async def go_on(self) -> tuple[Looks, Mapping[str, int]]:
        """Do all for MINUTES; return what was found, and how often what was done."""
        async with ClientSession(connector=TCPConnector(limit=0)) as http:
            self._clients = [Client(http, self._server.url, token) for token in self._store.tokens]
            for each in self._clients[:STREAMS]:
                self._streams.append((each, await Stream.open(self._server, each)))
            doing = [
                *(self._send for _ in range(SENDERS)),
                *(self._read for _ in range(READERS)),
                self._churn_streams,
                self._churn_people,
                self._churn_groups,
                self._look,
            ]
            tasks = [asyncio.create_task(each()) for each in doing]
            try:
                ended, _ = await asyncio.wait(tasks, timeout=MINUTES * 60, return_when=asyncio.FIRST_EXCEPTION)
                for task in ended:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return self.looks, self._done

    def _someone(self) -> tuple[Client, int]:
        """A member, and the place of a group of theirs."""
        user = self._dice.randrange(USERS)
        return self._clients[user], self._dice.choice(self._store.groups_of[user])

    async def _send(self) -> None:
        async for _ in _paced(SENDERS / SENDS_A_SECOND):
            client, group = self._someone()
            number = await client.send(self._store.groups[group], os.urandom(self._dice.randint(*BODIES)))
            self._last[group] = max(self._last[group], number)
            self._done["sends"] += 1

    async def _read(self) -> None:
        """Each page is the newest: so all members of a group that deletes what was fetched do fetch it."""
        async for _ in _paced(READERS / PAGES_A_SECOND):
            client, group = self._someone()
            after = max(0, self._last[group] - self._dice.choice((5, 50, 1_000)))
            self._done["messages read"] += len(await client.numbers(self._store.groups[group], after))
            self._done["pages"] += 1

    async def _churn_streams(self) -> None:
        async for _ in _paced(CHURN_SECONDS):
            client, stream = self._streams.pop(0)
            stream.transport.abort()
            self._streams.append((client, await Stream.open(self._server, client)))
            self._done["streams begun anew"] += 1

    async def _churn_people(self) -> None:
        """Somebody comes, joins a group, sends, and deletes the account."""
        async for n in _paced(CHURN_SECONDS):
            name = f"passing{n}"
            passing = await Client.register(self._clients[0].http, self._server.url, name)
            group = await self._clients[n % USERS].create_group(f"passing{n}", expiry=60)
            await passing.join(group)
            await passing.send(group, b"I was here")
            await self._clients[n % USERS].numbers(group)
            await passing.post("/delete-account", password=PASSWORD)
            await self._clients[n % USERS].leave(group)
            self._done["people who came and went"] += 1

    async def _churn_groups(self) -> None:
        async for n in _paced(CHURN_SECONDS):
            client = self._clients[n % USERS]
            group = await client.create_group(f"short{n}", expiry=600)
            for _ in range(3):
                await client.send(group, os.urandom(500), seconds=self._dice.choice((0, 5)))
            await client.post(f"/groups/{group}/delete")
            self._done["groups made and deleted"] += 1

    async def _look(self) -> None:
        async for _ in _paced(LOOK_SECONDS):
            self.looks.add(time.monotonic() - self._began, await asyncio.to_thread(_found, self._server))


async def _paced(seconds: float) -> AsyncIterator[int]:
    """Count, at most once in so many seconds."""
    for n in count():
        began = time.monotonic()
        yield n
        await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))


def _found(server: Server) -> dict[str, float]:
    """What the server's processes hold at this moment, and the disk."""
    found: dict[str, float] = {}
    for pid in (server.process.pid, *descendants(server.process.pid)):
        with suppress(OSError, StopIteration):  # it may just have ended
            what = "server" if pid == server.process.pid else "Java" if name(pid) == "java" else "worker"
            found[f"{what}: resident MB"] = found.get(f"{what}: resident MB", 0) + resident_mb(pid)
            held = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            found[f"{what}: descriptors"] = found.get(f"{what}: descriptors", 0) + held
    folder = server.file.parent
    sizes = {path: _size(path) for path in folder.rglob("*")}
    of_log = sizes[folder / "server.log"]
    found["log: MB"] = of_log / 1e6
    found["database, archive and work: MB"] = (sum(sizes.values()) - of_log) / 1e6
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:  # replaced meanwhile
        return 0


def _growth(looks: Looks, what: str) -> list[Figure]:
    """What one thing was at the two halves of what counts, and how much it grows."""
    first, second = looks.halves(what)
    kind, unit = what.split(": ")
    shown = f"{number(first)}, {number(second)}; {looks.an_hour(what):+.3g} an hour; at most {number(looks.most(what))}"
    values = {"first": first, "value": second, "an_hour": looks.an_hour(what)}
    return [Figure(f"{kind}, {unit}: medians of two halves", shown, values=values, unit=unit)]


def _plot(looks: Looks) -> str:
    shown = {
        what.partition(":")[0]: [(at / 60, value) for at, value in _thinned(looks.points(what))]
        for what in looks.found
        if what.endswith("resident MB")
    }
    return lines(f"{MINUTES:,.0f} minutes of all at once: memory", Axis("minutes"), Axis("resident, MB"), shown)


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most DRAWN of them: each is a mark in the plot."""
    return points[:: len(points) // DRAWN + 1]
