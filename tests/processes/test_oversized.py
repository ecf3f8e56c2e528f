"""The largest requests that the server takes, to every endpoint: nobody else notices."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from bench.process import resident_mb
from conclave.server.routes import ROUTES
from tests.support.client import Client
from tests.support.oversized import NOWHERE, Attack, Attacker, Outcome, launch, send
from tests.support.sample import amount, some
from tests.support.server import ServerProcess

ROUNDS = amount(3, 2)
FEW = 60
"""So many of some 700 attacks are a sample."""

LONGEST_WAIT_SECONDS = 0.5
"""Ten times what it is on a quiet machine; one that is busy is asked again."""

TRIES = 5
LARGEST_REFUSAL_BYTES = 20_000
MOST_GROWN_MB = 30
"""Whatever one request leaves behind comes twice for each of some 700; what it takes at first is not counted."""
PATIENT = """
[cleanup]
engine = "sql"
[limits]
login_failures = 10000
login_failures_per_address = 10000
"""


class Siege:
    """A server, somebody who attacks it, and somebody who reads and writes meanwhile."""

    def __init__(self, server: ServerProcess, attacker: Attacker, other: Client, group: str) -> None:
        self.server = server
        self.attacker = attacker
        self._other = other
        self._group = group

    async def launch(self, attack: Attack) -> Outcome:
        """Launch an attack, once more where others waited for long: they may have waited for something else."""
        for tries in range(TRIES):
            await asyncio.sleep(tries)  # not all in the same busy second
            outcome = await launch(attack, int(self.server.url.rpartition(":")[2]), [self._read, self._write])
            if max(outcome.waited) <= LONGEST_WAIT_SECONDS:
                break
        return outcome

    async def _read(self) -> Any:
        await self._other.get("/me")

    async def _write(self) -> Any:
        await self._other.send(self._group)


@pytest.fixture
async def siege(tmp_path: Path) -> AsyncIterator[Siege]:
    with ServerProcess(tmp_path, PATIENT) as server:
        async with ClientSession() as http:
            attacker, victim, other = [
                await Client.register(http, server.url, name) for name in ("attacker", "victim", "other")
            ]
            group = await other.create_group("others")
            yield Siege(server, await Attacker.settle(attacker, victim), other, group)
        server.stop()


async def test_no_request_keeps_others_waiting_or_the_memory_that_it_took(siege: Siege) -> None:
    resident = []
    attacks = some(list(siege.attacker.attacks()), FEW, "attacks")
    for _ in range(ROUNDS):
        for attack in attacks:
            outcome = await siege.launch(attack)
            assert 200 <= outcome.status < 500, outcome
            assert outcome.status < 300 or outcome.size < LARGEST_REFUSAL_BYTES, outcome
            assert max(outcome.waited) <= LONGEST_WAIT_SECONDS, outcome
        resident.append(resident_mb(siege.server.process.pid))
    assert max(resident[1:]) - resident[0] <= MOST_GROWN_MB, resident


async def test_every_endpoint_is_attacked_in_both_formats() -> None:
    async with ClientSession() as http:
        nobody = Client(http, "", user_id=NOWHERE)
        attacks = [attack.what for attack in Attacker(nobody, nobody, {}).attacks()]
    for route in ROUTES:
        kinds = ["JSON", "protobuf"] * bool(route.body) + ["query"] * bool(route.query and route.answer)
        for kind in kinds:
            assert any(what.startswith(f"{route.method} {route.path} {kind}") for what in attacks)


async def test_a_head_that_is_refused_before_all_of_it_has_come_is_answered(tmp_path: Path) -> None:
    head = "GET /api/v1/me HTTP/1.1\r\nHost: x\r\n" + f"Content-Type: {';' * 8000}\r\n" * 100 + "\r\n"
    with ServerProcess(tmp_path, PATIENT) as server:
        for _ in range(5):
            answer = await send(int(server.url.rpartition(":")[2]), head.encode())
            assert answer[9:12] == b"400"
