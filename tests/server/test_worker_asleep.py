"""A worker that has nothing to do for a while is not there, and is there again in time, and for whoever asks."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from conclave.config.settings import Config
from conclave.health.parts import Health
from conclave.server import supervise, worker_sleep
from conclave.server.supervise import Supervisor
from conclave.server.worker_sleep import StartLead
from conclave.system.worker_protocol import WorkerIdle, decode_idle, encode_idle
from spark.report import Report
from tests.server.test_supervise import have_workers, seen

MODULE_AT = 4
"""What follows the name of the worker's module is its own."""

LONG = 3600
SHORT = 2.0

WORKER = """
import json, os, sys, time
def say(**told):
    print(json.dumps(told), flush=True)
def note(what):
    with open({folder!r} + "/told", "a") as told:
        told.write(json.dumps([os.getpid(), time.monotonic(), what]) + "\\n")
note(sys.argv[1:])
sys.stdin.readline()
say(ready=True)
{does}
say(asleep=[{due_in}])
{ends}
"""
"""Notes with what it was started, and falls asleep."""

RUNS = f"say(began=True); say(run={Report('spark', 1, finished_at=2).to_mapping()!r}, due_in=3600)"
TAKES = "order = json.loads(sys.stdin.readline()); note(order); say(taken=order)"
COUNTS = f"{TAKES}; say(counting=True); say(counted={{'error': '', 'held': 7}}, due_in=3600)"


class Workers:
    """Workers that take turns, and what they have noted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch

    def are(self, does: str = RUNS, *, due_in: float = LONG, ends: str = "") -> None:
        """Have such workers from here on. They get the arguments of real ones."""
        program = WORKER.format(folder=str(self._folder), does=does, due_in=due_in, ends=ends)
        command = [sys.executable, "-I", "-c", program]
        self._monkeypatch.setattr(
            supervise, "parent_bound_command", lambda *each, **_: command + list(each[MODULE_AT:])
        )

    @property
    def noted(self) -> list[Any]:
        path = self._folder / "told"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def told(self) -> list[Any]:
        return [what for _, _, what in self.noted]


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workers:
    return Workers(tmp_path, monkeypatch)


@asynccontextmanager
async def asleep(workers: Workers) -> AsyncIterator[tuple[Supervisor, Health]]:
    """A server whose worker has done a run and sleeps."""
    health = Health()
    async with Supervisor(Config(), health) as supervisor:
        await seen(lambda: health.is_asleep)
        yield supervisor, health


async def test_between_runs_that_are_far_apart_there_is_no_worker_and_nothing_is_wrong(workers: Workers) -> None:
    workers.are()
    async with asleep(workers) as (_, health):
        assert health.cleanup == "asleep"
        assert health.worker is None
        assert health.faults == {}
        assert health.worker_ends == 0
        assert health.last_run
        assert health.next_run_at is not None
        assert abs(health.next_run_at - time.time() - LONG) < 60
        [[pid, _, arguments]] = workers.noted
        assert arguments == []
        with pytest.raises(ProcessLookupError):
            os.killpg(pid, 0)
    assert health.cleanup == "none"


async def test_it_is_started_ahead_of_its_run_and_told_what_is_due_when(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_sleep, "FIRST_LEAD_SECONDS", SHORT / 2)
    workers.are(due_in=SHORT)
    async with asleep(workers):
        began = time.monotonic()
        await seen(lambda: len(workers.noted) > 1)
        _, at, [told] = workers.noted[1]
        [due_in] = decode_idle(told, at).due
        assert began < at < at + due_in, "before its run"
        assert at + due_in < began + SHORT + 1, "as the former one has said"


async def test_a_run_that_is_asked_for_begins_at_once_and_not_twice(workers: Workers) -> None:
    workers.are()
    async with asleep(workers) as (supervisor, health):
        workers.are(f"{RUNS}; note('no order' if not __import__('select').select([0], [], [], 0.2)[0] else 'an order')")
        assert supervisor.run_now()
        await seen(lambda: workers.told == [[], [], "no order"])
        await seen(lambda: health.is_asleep)


async def test_a_dry_run_that_is_asked_for_is_done_at_once_and_moves_no_run(workers: Workers) -> None:
    workers.are()
    async with asleep(workers) as (supervisor, health):
        workers.are(COUNTS)
        assert await supervisor.count() == {"error": "", "held": 7}
        _, [argument], order = workers.told
        assert order == "count"
        assert abs(decode_idle(argument, time.monotonic()).due_in - LONG) < 60
        await seen(lambda: health.is_asleep)


@pytest.mark.parametrize("order", ["run", "count"])
async def test_what_is_asked_of_a_worker_that_is_falling_asleep_is_done_by_the_next_one(
    workers: Workers, order: str
) -> None:
    workers.are(ends="while not os.path.exists({!r}): time.sleep(0.01)".format(str(workers._folder / "end")))
    health = Health()
    async with Supervisor(Config(), health) as supervisor:
        await seen(lambda: supervisor._sleep)
        assert health.worker is not None
        workers.are(RUNS if order == "run" else COUNTS)
        if order == "run":
            assert supervisor.run_now()
            (workers._folder / "end").touch()
            await seen(lambda: len(workers.told) == 2)
        else:
            asking = asyncio.create_task(supervisor.count())
            await asyncio.sleep(0)
            (workers._folder / "end").touch()
            assert (await asking or {})["held"] == 7
        await seen(lambda: health.is_asleep)
        assert health.worker_ends == 0


async def test_a_worker_that_dies_while_it_falls_asleep_is_started_again(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has left has to be removed soon, not at the next run."""
    monkeypatch.setattr(supervise, "MIN_PAUSE_SECONDS", 0.05)
    workers.are(ends="os.kill(os.getpid(), 9)")
    health = Health()
    async with Supervisor(Config(), health):
        await seen(lambda: health.worker_ends)
        workers.are()
        await seen(lambda: health.is_asleep)
        assert workers.told[-1] == []


async def test_a_worker_that_does_not_get_to_sleep_is_killed(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KILL_SECONDS", "MIN_PAUSE_SECONDS"):
        monkeypatch.setattr(supervise, name, 0.1)
    workers.are(ends="time.sleep(600)")
    health = Health()
    async with Supervisor(Config(), health):
        await seen(lambda: health.worker_ends)
        assert list(health.faults.values()) == ["the cleanup worker hung (falling asleep), and was killed"]


async def test_a_java_that_is_missed_later_is_looked_for_again(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while it is being upgraded. Only at the start of a server does a missing one end all tries."""
    for name in ("MIN_PAUSE_SECONDS", "MAX_PAUSE_SECONDS"):
        monkeypatch.setattr(supervise, name, 0.05)
    workers.are()
    async with asleep(workers) as (supervisor, health):
        have_workers(monkeypatch, 'print(\'{"fault": "no Java"}\', flush=True); raise SystemExit(78)')
        assert supervisor.run_now()
        await seen(lambda: health.worker_ends > 1)
        workers.are()
        await seen(lambda: health.is_asleep)
        assert health.faults == {}


@pytest.mark.parametrize("steps", range(12))
async def test_a_stop_at_any_moment_of_falling_asleep_and_waking_is_not_lost(workers: Workers, steps: int) -> None:
    workers.are("", due_in=0)  # it wakes as soon as it sleeps
    supervisor = Supervisor(Config(), Health())
    await supervisor.__aenter__()
    await asyncio.sleep(steps * 0.03)
    async with asyncio.timeout(supervise.STOP_SECONDS + 5):
        await supervisor.__aexit__()
    for pid, _, _ in workers.noted:
        with pytest.raises(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def test_the_lead_is_learned_from_the_last_starts_within_bounds() -> None:
    lead = StartLead()
    assert lead.seconds == worker_sleep.FIRST_LEAD_SECONDS
    lead.record_worker(1.0)
    assert lead.seconds == worker_sleep.FIRST_LEAD_SECONDS, "Java is not known yet"
    lead.record_java(5.0)
    assert lead.seconds == 9.0
    lead.record_java(1000.0)
    assert lead.seconds == worker_sleep.MAX_LEAD_SECONDS
    lead.record_java(0.0)
    assert lead.seconds == worker_sleep.MIN_LEAD_SECONDS


def test_what_is_left_to_do_is_the_same_by_the_clock_of_all_processes() -> None:
    asleep = WorkerIdle((50.0, 20.0))
    assert asleep.due_in == 20.0
    assert decode_idle(encode_idle(asleep, 1000.0), 1005.0) == asleep.later(5.0)
