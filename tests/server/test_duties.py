"""The server's background work ends with it, and by nothing else: an error of it shows in health."""

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conclave import app_keys
from conclave.config.settings import Config
from conclave.events import Events
from conclave.health import background
from conclave.health.parts import Health, HealthPart
from conclave.server.reload import Reloader
from conclave.server.supervise import Supervisor
from conclave.store.views import runs
from conclave.store.views.runs import Run
from conclave.system.notify import ServiceManager
from spark.report import Report
from tests.admin.conftest import operating_beside
from tests.conftest import StartServer
from tests.support.server import PATIENCE, until

NOT_OF_A_DUTY = {
    HealthPart.STORAGE: "what the storage watch, and every read and write, find out",
    HealthPart.CLEANUP: "the supervisor's, see below",
    HealthPart.CLOCK: "what the clock watch finds out",
    HealthPart.ARCHIVE: "what every read there finds out",
    HealthPart.CHECKPOINTS: "the store's own task, by Health.duty",
    HealthPart.OVERDUE: "what the overdue watch finds out",
    HealthPart.CONFIGURATION: "the reloader's, see below",
}
"""The parts of health that no periodic duty has as its own."""


class Saboteur:
    """Has every duty raise that is begun while this is in place, until it is told to stop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: BaseException | None = None
        self.calls: Counter[HealthPart] = Counter()
        self._every = background.every
        monkeypatch.setattr(background, "every", self._begin)

    def _begin(
        self, health: Health, part: HealthPart, seconds: float, duty: background.Duty, *rest: Any
    ) -> contextlib.AbstractAsyncContextManager[None]:
        async def sabotaged() -> None:
            self.calls[part] += 1
            if self.error:
                raise self.error
            await duty()

        return self._every(health, part, min(seconds, 0.02), sabotaged, *rest)


@pytest.fixture
def saboteur(monkeypatch: pytest.MonkeyPatch) -> Saboteur:
    return Saboteur(monkeypatch)


@pytest.mark.parametrize("error", [RuntimeError("broken"), OverflowError(34, "too large"), asyncio.CancelledError()])
async def test_no_error_ends_a_duty_and_each_shows_in_health_until_it_works_again(
    config: Config, start_server: StartServer, saboteur: Saboteur, error: BaseException
) -> None:
    async with start_server(config) as running, operating_beside(running):
        health = running.app[app_keys.HEALTH]
        duties = set(HealthPart) - NOT_OF_A_DUTY.keys()
        await until(lambda: duties <= saboteur.calls.keys())
        assert health.faults == {}
        saboteur.error = error
        await until(lambda: duties <= health.faults.keys())
        saboteur.calls.clear()
        await until(lambda: min(saboteur.calls[part] for part in duties) >= 3)
        assert duties <= health.faults.keys(), "for ever: each is tried again and again"
        await running.user("alice")
        saboteur.error = None
        await until(lambda: not health.faults)


async def test_what_is_raised_between_two_turns_of_a_duty_starts_it_again() -> None:
    health, begun = Health(), 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise OverflowError
        health.clear_fault(HealthPart.OUTBOX)
        await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE), background.running(health, HealthPart.OUTBOX, work):
        await until(lambda: HealthPart.OUTBOX in health.faults)
        await until(lambda: not health.faults)
    assert begun == 2


async def test_the_supervisor_goes_on_after_an_error_that_nobody_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    health, supervisor, tries = Health(), Supervisor(Config(), Health()), 0
    supervisor = Supervisor(Config(), health)

    async def fail(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise OverflowError("int too large to convert to float")

    monkeypatch.setattr(supervisor, "_run_once", fail)
    async with asyncio.timeout(PATIENCE), supervisor:
        await until(lambda: tries >= 3)
        assert health.faults[HealthPart.CLEANUP] == "OverflowError: int too large to convert to float"


async def test_a_reload_that_fails_in_a_way_that_nobody_expected_shows_in_health_and_the_next_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, again = tmp_path / "conclave.toml", asyncio.Event()
    path.write_text("")
    health = Health()
    reloader = Reloader(Config(), health, Supervisor(Config(), health), None, path, again, ServiceManager())
    read = reloader._read

    def fail(*_: object) -> None:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(reloader, "_read", fail)
    async with reloader:
        again.set()
        await until(lambda: "ZeroDivisionError: broken" in health.faults.get(HealthPart.CONFIGURATION, ""))
        monkeypatch.setattr(reloader, "_read", read)
        again.set()
        await until(lambda: not health.faults)


async def test_runs_of_others_are_noted_once_and_those_of_the_worker_not_twice(
    config: Config, start_server: StartServer
) -> None:
    async with start_server(config) as running:
        health, store = running.app[app_keys.HEALTH], running.app[app_keys.STORE]
        by_worker = Report("sql", 100, finished_at=107)
        health.record_run(by_worker.to_mapping())
        by_hand = Report("sql", 200, finished_at=207, archived=5)
        for report in (by_worker, by_hand):
            await store.write(runs.add, Run(**report.to_mapping()))
        await until(lambda: health.last_run and health.last_run["started_at"] == 200)
        assert dict(health.runs) == {("everything", "ok"): 2}
        assert health.archived == 5


async def test_a_stream_that_fails_as_it_is_reminded_is_not_the_fault_of_others() -> None:
    reminded: list[int] = []

    def keep(session_id: int) -> None:
        if session_id == 1:
            raise OverflowError
        reminded.append(session_id)

    class Stream:
        slot = 0

        def __init__(self, session_id: int) -> None:
            self.user_id, self.session_id = b"user", session_id

        def keep_alive(self) -> None: ...

        def break_off(self) -> None:
            raise RuntimeError("even so")

    events = Events(keep, keep_alive_seconds=0.05)
    streams = [Stream(number) for number in (1, 2)]
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    for stream in streams:
        events.add(stream)  # type: ignore[arg-type]
    await until(lambda: len(reminded) >= 3)
    for stream in streams:
        events.remove(stream)  # type: ignore[arg-type]


async def test_a_duty_that_is_wanted_early_at_the_moment_it_ends_does_not_go_on() -> None:
    """Or the server would never stop."""
    early, times = asyncio.Event(), 0

    async def duty() -> None:
        nonlocal times
        times += 1

    async with (
        asyncio.timeout(PATIENCE),
        background.every(Health(), HealthPart.SESSION_ACTIVITY, 3_600, duty, early),
    ):
        early.set()
        while not times:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        early.set()
    assert times == 1
