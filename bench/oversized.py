"""The largest requests that the server takes, to every endpoint: what they cost, and what others wait meanwhile."""

from pathlib import Path
from typing import Any

import uvloop
from aiohttp import ClientSession

from bench.figures import Figure, latencies, percentile, single
from bench.process import Server, resident_mb
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from tests.support.client import Client
from tests.support.oversized import Attacker, launch

MORE_ROUNDS = 2
"""After a first one, which makes the server as large as it gets."""


def largest(folder: Path) -> list[Figure]:
    """The event loop's work for each request alone, then what one user who reads and writes waits during each."""
    with Server(Config(database_path=str(folder / "conclave.db"), cleanup=CleanupConfig(engine="sql"))) as server:
        return uvloop.run(_attack(server))


async def _attack(server: Server) -> list[Figure]:
    async with ClientSession() as http:
        attacker, victim, other = [
            await Client.register(http, server.url, name) for name in ("attacker", "victim", "other")
        ]
        group = await other.create_group("others")
        settled = await Attacker.settle(attacker, victim)

        async def read() -> Any:
            await other.get("/me")

        async def write() -> Any:
            await other.send(group)

        port, pid = int(server.url.rpartition(":")[2]), server.process.pid
        before = resident_mb(pid)
        work = {}
        for attack in settled.attacks():
            began = _loop_seconds(pid)
            await launch(attack, port, [])
            work[attack.what] = _loop_seconds(pid) - began
        warm = resident_mb(pid)
        for _ in range(MORE_ROUNDS):
            outcomes = [await launch(attack, port, [read, write]) for attack in settled.attacks()]
        grown = resident_mb(pid) - warm
    hardest = max(work, key=work.__getitem__)
    return [
        latencies("work of the event loop for a request", list(work.values())),
        single("99 of 100 requests need of it", percentile(list(work.values()), 0.99) * 1000, "ms", most=50),
        single(f"the one that needs most: {hardest}", work[hardest] * 1000, "ms"),
        latencies("longest wait of others during a request", [max(each.waited) for each in outcomes]),
        single("largest refusal", max(each.size for each in outcomes if each.status >= 300), "bytes", most=20_000),
        single("resident: before", before, "MB"),
        single("resident: after the first round", warm, "MB"),
        single(f"resident: what {MORE_ROUNDS} more rounds added", grown, "MB", most=20),
    ]


def _loop_seconds(pid: int) -> float:
    """What the main thread, which runs the event loop, has worked so far."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
