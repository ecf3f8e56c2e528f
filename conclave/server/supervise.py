"""Starts the cleanup worker as a process of its own, restarts it, and reports its health.

A worker that has nothing to do for a while ends. It is started again for the next run, and for an order.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from typing import Any, Self

from conclave.config.settings import Config
from conclave.health.background import keep_running
from conclave.health.parts import Health, HealthPart
from conclave.keys import copying
from conclave.logs.setup import get_logger
from conclave.server.worker_sleep import StartLead, StartTimeout, WorkerSleep
from conclave.system.child_process import parent_bound_command
from conclave.system.worker_protocol import (
    EXIT_NO_RESTART,
    DryRunEnded,
    JavaStarted,
    OrderAccepted,
    RunEnded,
    WorkerFault,
    WorkerIdle,
    WorkerMessage,
    WorkerOrder,
    WorkerState,
    decode_message,
    encode_idle,
    encode_order,
)

log = get_logger(__name__)

FIRST_PAUSE_SECONDS = 1.0
"""The pause before a worker is started again that had completed a run."""

MAX_PAUSE_SECONDS = 60.0
"""The pause doubles each time that a worker ends without a completed run, up to this."""

STOP_SECONDS = 1.0
"""The worker gets 1 second to end by itself. Then it is killed: a run can be stopped anywhere."""

READY_SECONDS = 120.0
"""The worker gets 2 minutes to begin, and twice as long each time that was not enough."""

PREPARE_SECONDS = 300.0
"""It gets 5 minutes to start Spark, likewise: Java gives way to all others, and there may be many."""

MAX_READY_SECONDS = 3600.0
"""At most an hour. On a busy machine each start would be broken off otherwise, and nothing would be erased."""

KILL_SECONDS = 30.0
"""A worker hangs if it is silent for 30 seconds longer than its task may take."""

_STARTING, _PREPARING = "starting", "preparing a run"

LINE_LIMIT = 1024 * 1024
"""At most 1 MiB in one line of the worker."""


MAX_SLEEP_SECONDS = 3600.0
"""A wait lasts at most an hour: an interval may be longer than the event loop can wait."""


class Supervisor:
    """Runs the worker while the block lasts, but for times in which it has nothing to do.

    If it dies, starts it again, after longer and longer pauses.
    """

    def __init__(self, config: Config, health: Health) -> None:
        """``health`` is told when cleanup does not work."""
        self._config = config
        self._health = health
        self._doing = ""
        self._starting = StartTimeout(READY_SECONDS, MAX_READY_SECONDS)
        self._preparing = StartTimeout(PREPARE_SECONDS, MAX_READY_SECONDS)
        self._preparing_since = 0.0
        self._fault = ""
        self._process: Process | None = None
        self._failing: dict[str, str] = {}
        self._counting: asyncio.Future[dict[str, Any]] | None = None
        self._orders: set[WorkerOrder] = set()
        self._news = asyncio.Event()
        self._sleep: WorkerSleep | None = None
        self._due_at = 0.0
        self._was_ready = False
        self._lead = StartLead()

    async def __aenter__(self) -> Self:
        """Start the worker in the background."""
        self._task = asyncio.create_task(keep_running(self._health, HealthPart.CLEANUP, self._keep_running))
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the worker."""
        self._task.cancel()
        await asyncio.wait({self._task})  # awaited itself, it would hide a cancellation of the caller
        self._forget("the cleanup worker was ended")
        self._sleep = None
        self._health.is_asleep = False
        if not self._task.cancelled():
            self._task.result()

    def kill(self) -> None:
        """Kill the worker and its JVM at once, from whichever thread: this process is about to end by force."""
        if process := self._process:
            _kill(process)

    def follow(self, config: Config) -> None:
        """Have the worker log by other settings, at once. All others are the same as before."""
        self._config = config
        self._send(_config_line(config))

    def run_now(self) -> bool:
        """Have the worker do each of its jobs at once, or after the run under way; False: there is no worker."""
        return self._order(WorkerOrder.RUN)

    async def count(self) -> dict[str, Any] | None:
        """Have the worker count what a run would delete, and return its report; None: there is no worker.

        If ``error`` is not empty, the rest may be missing. All who ask at the same time get the same report.
        """
        if self._counting is None:
            if not self._order(WorkerOrder.COUNT):
                return None
            self._counting = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._counting)

    def _order(self, order: WorkerOrder) -> bool:
        """Give the worker an order; one that is asleep, or falls asleep before it has taken it, is woken for it."""
        if not self._send(encode_order(order).encode()) and not self._is_between():
            return False
        self._orders.add(order)
        self._news.set()
        return True

    def _is_between(self) -> bool:
        """Tell whether there is no worker for a while: one has fallen asleep, and the next one is not there yet."""
        return self._sleep is not None or self._health.is_asleep

    def _send(self, line: bytes) -> bool:
        if self._process and self._process.stdin and not self._process.stdin.is_closing():
            self._process.stdin.write(line)
            return True
        return False

    def _note_counted(self, report: dict[str, Any]) -> None:
        if self._counting and not self._counting.done():
            self._counting.set_result(report)
        self._counting = None

    def _forget(self, why: str) -> None:
        """Wait for no order any more that the worker was given."""
        self._orders.clear()
        self._note_counted({"error": why})

    def _begin_anew(self, why: str) -> None:
        """Have the next worker do everything at once, and wait for nothing that a former one was to do."""
        self._sleep, self._health.is_asleep = None, False
        self._forget(why)

    async def _keep_running(self) -> None:
        self._begin_anew("the cleanup worker was lost")
        pause = FIRST_PAUSE_SECONDS
        while True:
            ran = False
            try:
                self._fault = ""
                ran, status = await self._run_once()
                if self._sleep and status == 0:
                    pause = FIRST_PAUSE_SECONDS
                    await self._sleep_until_due(self._sleep)
                    continue
                if status == EXIT_NO_RESTART and not self._was_ready:
                    self._forget("there is no cleanup worker")
                    return
                reason = self._fault or f"the cleanup worker ended with status {status}"
            except TimeoutError:
                reason = f"the cleanup worker hung ({self._doing}), and was killed"
                if self._doing in (_STARTING, _PREPARING):
                    allowed = self._starting if self._doing == _STARTING else self._preparing
                    allowed.was_too_short()
                    reason += f"; the next one gets {allowed.seconds:.0f} seconds to start"
            except (OSError, ValueError) as error:  # it could not be started, or sent a line that is no message
                reason = f"the cleanup worker failed: {error}"
            self._begin_anew("the cleanup worker ended meanwhile")
            self._health.fault(HealthPart.CLEANUP, reason)
            self._health.worker_ends += 1
            pause = FIRST_PAUSE_SECONDS if ran else min(2 * pause, MAX_PAUSE_SECONDS)
            log.error("cleanup_worker_ended", reason=reason, restart_in_seconds=pause)
            await asyncio.sleep(pause)

    async def _sleep_until_due(self, sleep: WorkerSleep) -> None:
        """Wait until it is time to start the worker for its next run, or until it has to do anything else at once."""
        self._health.is_asleep = True
        self._health.next_run_at = time.time() + sleep.due_in
        log.debug("cleanup_asleep", wakes_in_seconds=round(max(0.0, sleep.due_in - self._lead.seconds), 1))
        while not self._orders:
            left = sleep.due_in - self._lead.seconds
            if left <= 0:
                return
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, MAX_SLEEP_SECONDS)):
                    await self._news.wait()
        if self._orders != {WorkerOrder.COUNT}:
            self._sleep = None  # then the worker does each job at once

    async def _run_once(self) -> tuple[bool, int]:
        """Run a worker to its end; return whether it completed a run well, and its exit status."""
        former, ran = self._sleep, False
        process = await self._begin(former)
        self._process, self._sleep, self._health.is_asleep = process, None, False
        self._health.worker = process.pid
        self._health.is_waking = True
        try:
            if process.stdin and process.stdout:  # both were asked for as pipes
                process.stdin.write(_config_line(self._config))
                if not former:
                    self._orders.discard(WorkerOrder.RUN)  # it does each job at once in any case
                for order in self._orders:
                    process.stdin.write(encode_order(order).encode())
                self._doing = _STARTING
                began = self._due_at = time.monotonic()
                if former:
                    self._due_at += former.due_in
                async with asyncio.timeout(self._starting.seconds) as limit:
                    async for line in process.stdout:
                        told = decode_message(line)
                        self._learn(told, time.monotonic() - began, is_woken=former is not None)
                        ran |= self._hear(told)
                        limit.reschedule(asyncio.get_running_loop().time() + self._patience(told))
                    self._doing = "ending"
                    limit.reschedule(asyncio.get_running_loop().time() + KILL_SECONDS)
                    await process.wait()
            return ran, await process.wait()
        finally:
            self._process = None
            self._health.worker = None
            self._health.is_in_run = self._health.is_waking = False
            self._health.next_run_at = None
            await _end(process)

    async def _begin(self, former: WorkerSleep | None) -> Process:
        """Start a worker. ``former``: what one has left to do that fell asleep; without it, it does everything."""
        # -P: files in the working directory must not be taken for the worker's own modules. SIGCONT: a worker ends by
        # itself when its input ends, and removes its files first. One that was stopped (SIGSTOP) has to be woken.
        left = [encode_idle(former.left, time.monotonic())] if former else []
        return await asyncio.create_subprocess_exec(
            *parent_bound_command(sys.executable, "-P", "-m", "spark.worker", *left, death_signal=signal.SIGCONT),
            stdin=PIPE,
            stdout=PIPE,
            limit=LINE_LIMIT,
            start_new_session=True,
        )

    def _learn(self, told: WorkerMessage, seconds: float, *, is_woken: bool) -> None:
        """Learn how long a worker and its Java take to start. ``seconds``: since it was started."""
        if self._doing == _PREPARING and told is not WorkerState.PREPARING:
            self._preparing.note(time.monotonic() - self._preparing_since)
        if isinstance(told, JavaStarted):
            self._health.java_starts += 1
            self._health.java_start_seconds = told.seconds
            self._lead.note_java(told.seconds)
            log.debug("cleanup_java_started", seconds=round(told.seconds, 1))
        elif told is WorkerState.READY:
            self._starting.note(seconds)
            self._lead.note_worker(seconds)
            if is_woken:
                log.debug("cleanup_woken")

    def _patience(self, told: WorkerMessage) -> float:
        """Return the seconds until the worker has to send its next message. A run ends itself in time."""
        if told in (WorkerState.BEGAN, WorkerState.WAITING, WorkerState.COUNTING):
            self._doing = {WorkerState.BEGAN: "in a run", WorkerState.WAITING: "waiting for another run"}.get(
                told, "in a dry run"
            )
            silent = len(self._config.vault_copies) * copying.TIMEOUT_SECONDS  # at its end it may wait for each of them
            return self._config.cleanup.max_run_time + silent + KILL_SECONDS
        if told is WorkerState.PREPARING:
            self._doing = _PREPARING
            self._preparing_since = time.monotonic()
            return self._preparing.seconds
        if isinstance(told, WorkerIdle):
            self._doing = "falling asleep"
            return KILL_SECONDS
        self._doing = "between runs"
        return max(0.0, self._due_at - time.monotonic()) + KILL_SECONDS

    def _hear(self, told: WorkerMessage) -> bool:
        """Take in a message of the worker. Return whether it completed a run well."""
        self._note_schedule(told)
        match told:
            case WorkerFault():
                self._fault = told.reason
                self._health.fault(HealthPart.CLEANUP, self._fault)
                log.error("cleanup_unavailable", reason=told.reason)
            case WorkerState.READY if not self._was_ready:
                self._was_ready = True
                interval = self._config.cleanup_interval
                log.info("cleanup_ready", engine=self._config.cleanup.engine, interval_seconds=interval)
            case WorkerState.BEGAN:
                log.debug("cleanup_began", engine=self._config.cleanup.engine)
            case OrderAccepted():
                self._orders.discard(told.order)
            case WorkerIdle():
                self._sleep = WorkerSleep(told, time.monotonic())
            case RunEnded():
                return self._note_run(told.report)
            case DryRunEnded():
                self._note_counted(told.report)
        return False

    def _note_schedule(self, told: WorkerMessage) -> None:
        """Note what the worker does, and when the next run begins."""
        health = self._health
        if isinstance(told, WorkerState):
            health.is_in_run = told is WorkerState.BEGAN
            health.is_waking = told is WorkerState.PREPARING
        elif not isinstance(told, OrderAccepted):
            health.is_in_run = health.is_waking = False
        if isinstance(told, JavaStarted | RunEnded | DryRunEnded | WorkerIdle | WorkerFault):
            health.next_run_at = None if told.due_in is None else time.time() + told.due_in
            self._due_at = time.monotonic() + (told.due_in or 0.0)

    def _note_run(self, report: dict[str, Any]) -> bool:
        """Note the report of a run; return whether it went well."""
        self._health.note_run(report)
        if report["error"]:
            self._failing[report["job"]] = report["error"]
            log.error("cleanup_run", **report)
        else:
            self._failing.pop(report["job"], None)
            log.info("cleanup_run", **report)
        # What failed in one purge job is not mended by another one that works.
        if self._failing:
            self._health.fault(HealthPart.CLEANUP, "; ".join(dict.fromkeys(self._failing.values())))
        else:
            self._health.mend(HealthPart.CLEANUP)
        return not report["error"]


def _config_line(config: Config) -> bytes:
    return config.to_json().encode() + b"\n"


async def _end(process: Process) -> None:
    """Close the worker's input. After at most STOP_SECONDS kill what is left of it and its JVM.

    Also if this is cancelled meanwhile: then it is killed at once.
    """
    if process.stdin:
        process.stdin.close()
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
    finally:
        _kill(process)
        await process.wait()


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
