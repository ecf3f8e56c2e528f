"""While the clock is in doubt: what only the clock hides does not count as fetched, and what it ends has not ended."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from conclave import keys
from conclave.config.cleanup import CleanupConfig
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from spark.engine import Engine
from spark.run import clean_up
from tests.conftest import Running, StartServer
from tests.support.archive import Mover
from tests.support.client import Client
from tests.support.protobuf import ProtobufClient

HOUR, DAY = 3600, 86_400
WEEK = 7 * DAY
JUMP = 10 * DAY
"""The clock is wrong by so much: more than the week for which members may hold messages back."""

places = pytest.mark.parametrize("place", ["hot", "remembered", "archived", "partly archived"])


@pytest.fixture
def config(config: Config) -> Config:
    settings = RetentionConfig(fetch_hold_limit=WEEK)
    return replace(config, retention=settings, cleanup=CleanupConfig(engine="sql", disk_reserve=0))


@pytest.fixture
async def running(config: Config, start_server: StartServer) -> AsyncIterator[Running]:
    async with start_server(config) as server:
        yield server


async def watermarks(running: Running) -> dict[str, int]:
    await running.settle()
    return dict(await running.query("SELECT username, watermark FROM members JOIN users USING (user_id)"))


async def noticed(running: Running) -> None:
    """Have the guard look, as it does every 5 seconds."""
    await running.app[keys.CLOCK_WATCH].note()


async def set_right(running: Running, seconds: int = JUMP) -> None:
    """Set the clock back by ``seconds`` and accept it; a run follows."""
    running.clock.set_wrong(-seconds)
    await run(running, accept=True)
    await running.app[keys.CLOCK_WATCH].look()
    assert "clock" not in running.app[keys.HEALTH].faults


async def run(running: Running, *, accept: bool = False) -> int:
    """Do a run that leaves the archive alone, which takes Spark; return how many messages it has erased."""
    await running.settle()
    engine = Engine(running.config, running.clock, is_hot_only=True)
    report = await asyncio.to_thread(clean_up, engine, accept_clock=accept)
    assert report.error == ""
    return report.counts.total()


async def unread(
    running: Running, place: str = "hot", expiry: int = 0, kind: type[Client] = Client
) -> tuple[Client, Client, str]:
    """Alice and bob in a group with five messages of alice's that bob has not fetched, stored in ``place``."""
    alice, bob = [await kind.register(running.http, running.url, name) for name in ("alice", "bob")]
    group = await alice.create_group("friends", expiry=expiry)
    await bob.join(group)
    if place == "remembered":
        assert await bob.numbers(group) == []
    for _ in range(5):
        await alice.send(group)
    if place == "remembered":
        assert await alice.numbers(group) == [1, 2, 3, 4, 5]
    elif place != "hot":
        mover = Mover(running.config)
        mover.move(group, 5 if place == "archived" else 3)
        mover.drop_copies(group)
    return alice, bob, group


@places
@pytest.mark.parametrize("kind", [Client, ProtobufClient])
@pytest.mark.parametrize("guard_has_looked", [True, False])
async def test_unread_messages_that_only_the_clock_hides_do_not_count_as_fetched(
    running: Running, place: str, kind: type[Client], *, guard_has_looked: bool
) -> None:
    alice, bob, group = await unread(running, place, kind=kind)
    running.clock.set_wrong(JUMP)
    if guard_has_looked:
        await noticed(running)
    assert await alice.send(group) == 6
    for after, seen in ((0, [6]), (0, [6]), (6, []), (3, [6]), (99, [])):
        assert await bob.numbers(group, after) == seen
        assert (await watermarks(running))["bob"] == 0, after
    await bob.send(group)
    assert (await watermarks(running))["bob"] == 0, "a send says nothing of what came before"
    await set_right(running)
    assert await run(running) == 0
    assert await bob.numbers(group) == [1, 2, 3, 4, 5, 6, 7]
    assert (await watermarks(running))["bob"] == 7


async def test_the_window_before_the_guard_looks_does_no_harm(running: Running) -> None:
    """The clock jumps and is back before anybody has looked: no page in between has counted for what it left out."""
    alice, bob, group = await unread(running)
    running.clock.set_wrong(JUMP)
    await alice.send(group)
    assert await bob.numbers(group) == [6]
    await running.settle()
    running.clock.set_wrong(-JUMP)
    assert "clock" not in running.app[keys.HEALTH].faults
    assert (await watermarks(running))["bob"] == 0
    assert await bob.numbers(group) == [1, 2, 3, 4, 5, 6]
