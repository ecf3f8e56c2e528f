"""The supervisor of the cleanup worker: no stop is lost, and no worker outlives it, whatever the worker does."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from conclave.config.settings import Config
from conclave.health.parts import Health, HealthPart
from conclave.server import supervise
from conclave.server.supervise import Supervisor
from conclave.server.worker_sleep import StartTimeout
from conclave.system.worker_protocol import WorkerState, encode_message
from tests.support.server import PATIENCE, alive

NOBODY = 2**30
"""No process has so great an id."""

STEPS = 20
"""The end of a worker takes fewer passes of the event loop."""

TALKS = "import sys, time; sys.stdin.readline(); sys.stdin.readline(); print('no message', flush=True); time.sleep(600)"
IS_SILENT = "import os, time; os.close(1); time.sleep(600)"
"""Workers that do not end with their input: one answers an order by what is no message, one closes its output."""


class Input:
    def write(self, line: bytes) -> None: ...

    def close(self) -> None: ...


class EndedWorker:
    """A worker that has ended."""

    def __init__(self) -> None:
        self.pid = NOBODY
        self.stdin = Input()
        self.stdout = asyncio.StreamReader()
        self.stdout.feed_eof()

    async def wait(self) -> int:
        await asyncio.sleep(0)
        return 1


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker that is started has ended at once."""

    async def start(*_: Any, **__: Any) -> EndedWorker:
        return EndedWorker()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The ids of all workers that are started; what is left of them is killed."""
    pids: list[int] = []
    begin = asyncio.create_subprocess_exec

    async def start(*command: str, **options: Any) -> asyncio.subprocess.Process:
        process = await begin(*command, **options)
        pids.append(process.pid)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    yield pids
    for pid in filter(alive, pids):
        os.kill(pid, signal.SIGKILL)


def have_workers(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(supervise, "parent_bound_command", lambda *_, **__: [sys.executable, "-I", "-c", program])


async def in_time(doing: Coroutine[Any, Any, object]) -> None:
    """Wait for what might never end. It is not cancelled, which would have a lost cancellation again."""
    _, hanging = await asyncio.wait({asyncio.create_task(doing)}, timeout=PATIENCE)
    assert not hanging


async def seen(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("ending")
@pytest.mark.parametrize("steps", range(STEPS))
async def test_a_stop_at_any_moment_of_a_workers_end_is_not_lost(steps: int) -> None:
    supervisor = Supervisor(Config(), Health())
    await supervisor.__aenter__()
    for _ in range(steps):
        await asyncio.sleep(0)
    await in_time(supervisor.__aexit__())
    assert supervisor._task.done()


async def test_a_stop_while_a_worker_does_not_end_leaves_none(
    monkeypatch: pytest.MonkeyPatch, started: list[int]
) -> None:
    have_workers(monkeypatch, TALKS)
    monkeypatch.setattr(supervise, "STOP_SECONDS", PATIENCE)
    health = Health()
    async with Supervisor(Config(), health) as supervisor:
        await seen(lambda: health.worker)
        assert supervisor.run_now()
        await seen(lambda: not health.worker)  # from here on its end is waited for
    assert not any(map(alive, started))


async def test_a_worker_that_closes_its_output_and_does_not_end_is_started_again(
    monkeypatch: pytest.MonkeyPatch, started: list[int]
) -> None:
    have_workers(monkeypatch, IS_SILENT)
    for name in ("KILL_SECONDS", "STOP_SECONDS", "MIN_PAUSE_SECONDS"):
        monkeypatch.setattr(supervise, name, 0.1)
    health = Health()
    async with Supervisor(Config(), health):
        await seen(lambda: len(started) > 1)
        assert health.faults[HealthPart.CLEANUP] == "the cleanup worker hung (ending), and was killed"
        assert not alive(started[0])
    assert not any(map(alive, started))


@pytest.mark.system
async def test_a_worker_that_starts_slowly_gets_longer_each_time(
    monkeypatch: pytest.MonkeyPatch, started: list[int]
) -> None:
    """Otherwise each would be killed before it is ready, for ever, on a machine with much other work."""
    have_workers(monkeypatch, "import time; time.sleep(600)")
    for name, seconds in {"READY_SECONDS": 0.3, "MAX_READY_SECONDS": 0.9, "MIN_PAUSE_SECONDS": 0.01}.items():
        monkeypatch.setattr(supervise, name, seconds)
    monkeypatch.setattr(supervise, "MAX_PAUSE_SECONDS", 0.01)
    given: list[float] = []
    timeout = asyncio.timeout

    def noted(seconds: float) -> asyncio.Timeout:
        given.append(seconds)
        return timeout(seconds)

    monkeypatch.setattr(supervise.asyncio, "timeout", noted)  # type: ignore[attr-defined]
    health = Health()
    async with Supervisor(Config(), health):
        async with timeout(PATIENCE):
            while len(started) < 4:
                await asyncio.sleep(0.01)
        assert (
            "hung (starting), and was killed; the next one gets 1 seconds to start" in health.faults[HealthPart.CLEANUP]
        )
    assert [each for each in given if each != supervise.STOP_SECONDS][:4] == [0.3, 0.6, 0.9, 0.9]


async def test_a_worker_is_killed_at_once_from_another_thread(
    monkeypatch: pytest.MonkeyPatch, started: list[int]
) -> None:
    have_workers(monkeypatch, "import sys; sys.stdin.readline(); sys.stdin.readline()")
    health = Health()
    async with Supervisor(Config(), health) as supervisor:
        await seen(lambda: health.worker)
        await asyncio.to_thread(supervisor.kill)
        await seen(lambda: not alive(started[0]))
    await asyncio.to_thread(supervisor.kill)  # without a worker nothing is done


def test_what_a_start_may_take_is_bounded_and_goes_down_once_one_succeeds() -> None:
    allowed = StartTimeout(120, 3600)
    for _ in range(5_000):
        allowed.extend()
    assert allowed.seconds == 3600
    allowed.record(100)
    assert allowed.seconds == 200, "a machine that needs 100 seconds gets them the next time too"
    allowed.record(3)
    assert allowed.seconds == 120


async def test_a_worker_that_is_ready_ends_the_longer_wait(monkeypatch: pytest.MonkeyPatch, started: list[int]) -> None:
    have_workers(
        monkeypatch, f"print({encode_message(WorkerState.READY).strip()!r}, flush=True); import time; time.sleep(600)"
    )
    supervisor = Supervisor(Config(), Health())
    for _ in range(5_000):
        supervisor._start_timeout.extend()
    async with supervisor:
        await seen(lambda: supervisor._start_timeout.seconds < supervise.MAX_READY_SECONDS)
    assert not any(map(alive, started))
