"""Health tells what runs should have erased, and names no group."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from conclave import app_keys
from conclave.config.cleanup import CleanupConfig
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.health.parts import HealthPart
from conclave.server import duties
from conclave.store.views.overdue import OverdueTotal
from spark.environment import RunEnvironment
from spark.run import clean_up
from tests.conftest import Running, StartServer
from tests.support.server import until

HOUR = 3600


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duties, "OVERDUE_INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(duties, "OVERDUE_SHARE", 0)


@pytest.fixture
def config(config: Config) -> Config:
    return replace(config, message_retention=10, cleanup=CleanupConfig(engine="sql", disk_reserve=0))


async def looked(server: Running) -> None:
    """Wait until the server has looked again, more than once."""
    looks, store = 0, server.app[app_keys.STORE]
    read = store.read

    async def counted(fn: Callable[..., object], *args: object, **kwargs: object) -> object:
        nonlocal looks
        result = await read(fn, *args, **kwargs)
        looks += fn.__name__ == "with_late"
        return result

    setattr(store, "read", counted)  # noqa: B010 - mypy wants no method replaced
    await until(lambda: looks > 2)
    setattr(store, "read", read)  # noqa: B010


async def sent(server: Running) -> str:
    """Send a message that lives for ten seconds; return the id of its group."""
    [alice] = await server.users("alice")
    group = await alice.create_group("secrets")
    await alice.send(group)
    return group


async def test_what_two_runs_have_left_is_a_fault_until_a_run_erases_it(
    config: Config, start_server: StartServer
) -> None:
    async with start_server(config) as server:
        faults = server.app[app_keys.HEALTH]
        group = await sent(server)
        server.clock.advance(11 + 2 * HOUR)
        await looked(server)
        assert HealthPart.OVERDUE not in faults.faults
        server.clock.advance(1)
        await until(lambda: HealthPart.OVERDUE in faults.faults)
        told = faults.faults[HealthPart.OVERDUE]
        assert told.startswith("two runs should have erased messages of 1 group by now, the first was due 2h ago: ")
        assert group not in told
        assert "secrets" not in told
        async with server.http.get(f"{server.url}/healthz") as response:
            assert await response.json() == {"status": "degraded"}
        report = await asyncio.to_thread(clean_up, RunEnvironment(config, server.clock))
        assert not report.error
        await until(lambda: HealthPart.OVERDUE not in faults.faults)
        assert await server.query("SELECT count(*) FROM messages") == [(0,)]


async def test_while_nothing_may_be_erased_nothing_is_overdue(config: Config, start_server: StartServer) -> None:
    async with start_server(replace(config, retention=RetentionConfig(enabled=False))) as server:
        await sent(server)
        server.clock.advance(9 * HOUR)
        await looked(server)
        assert HealthPart.OVERDUE not in server.app[app_keys.HEALTH].faults


async def test_while_the_clock_is_wrong_health_tells_of_the_clock_alone(
    config: Config, start_server: StartServer
) -> None:
    async with start_server(config) as server:
        faults = server.app[app_keys.HEALTH]
        await sent(server)
        server.clock.advance(12 + 2 * HOUR)
        await until(lambda: HealthPart.OVERDUE in faults.faults)
        server.clock.set_wrong(9 * HOUR)
        await server.app[app_keys.CLOCK_WATCH].record()
        await until(lambda: HealthPart.OVERDUE not in faults.faults)
        assert HealthPart.CLOCK in faults.faults


async def test_a_message_is_overdue_from_the_end_of_its_last_timer_on(
    config: Config, start_server: StartServer
) -> None:
    """Also once its readers were told of that, and however long ago it was sent."""
    async with start_server(replace(config, message_retention=-1)) as server:
        [alice] = await server.users("alice")
        group = await alice.create_group("secrets")
        await alice.send(group, b"secret", 20 * HOUR)
        server.clock.advance(20 * HOUR + 60)
        await until(lambda: server.app[app_keys.HEALTH].overdue.groups > 0)
        while await server.query("SELECT 1 FROM timers WHERE NOT told"):
            await server.settle()
        await looked(server)
        assert server.app[app_keys.HEALTH].overdue == OverdueTotal(1, 60)
        assert HealthPart.OVERDUE not in server.app[app_keys.HEALTH].faults
