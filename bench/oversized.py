"""The largest requests that the server takes, to every endpoint: what others wait meanwhile, and the memory."""

import asyncio
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import ClientSession

from bench.figures import Figure, latencies, percentile, single
from bench.process import Server, resident_mb
from conclave.config import CleanupConfig, Config
from tests.client import Client
from tests.oversized import Attacker, Outcome, launch

ROUNDS = 3


def largest(folder: Path) -> list[Figure]:
    """Each request while one user reads and writes; the rounds after the first are what counts."""
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

        port = int(server.url.rpartition(":")[2])
        resident, outcomes = [resident_mb(server.process.pid)], list[Outcome]()
        for _ in range(ROUNDS):
            outcomes = [await launch(attack, port, [read, write]) for attack in settled.attacks()]
            await asyncio.sleep(1)
            resident.append(resident_mb(server.process.pid))
    slowest = max(outcomes, key=lambda each: max(each.waited))
    worst = [max(each.waited) for each in outcomes]
    return [
        latencies("longest wait of others during a request", worst),
        single("99 of 100 requests hold others up for", percentile(worst, 0.99) * 1000, "ms", most=50),
        single(f"the one that held others up the longest: {slowest.attack.what}", max(worst) * 1000, "ms"),
        single("largest refusal", max(each.size for each in outcomes if each.status >= 300), "bytes", most=20_000),
        single("resident: before", resident[0], "MB"),
        single("resident: after the first round", resident[1], "MB"),
        single(f"resident: what {ROUNDS - 1} more rounds added", resident[-1] - resident[1], "MB", most=20),
    ]
