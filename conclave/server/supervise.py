"""Runs the cleanup worker as a child process, restarts it, and reports its health.

An idle worker exits. It is started again for the next run or for an order.
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

MIN_PAUSE_SECONDS = 1.0
"""The pause before a restart of a worker that had completed a run."""

MAX_PAUSE_SECONDS = 60.0
"""The pause doubles, up to a minute, each time that a worker ends without a completed run."""

STOP_SECONDS = 1.0
"""The worker gets 1 second to exit. Then it is killed: a run can be interrupted anywhere."""

READY_SECONDS = 120.0
"""The worker gets 2 minutes to start. The limit doubles each time that was not enough."""

PREPARE_SECONDS = 300.0
"""It gets 5 minutes to start Spark, with the same rule: Java runs at a low priority."""

MAX_READY_SECONDS = 3600.0
"""The limit of both, an hour. With fixed limits no start would complete on a busy machine."""

KILL_SECONDS = 30.0
"""A worker hangs if it sends nothing for 30 seconds longer than its task may take."""

_STARTING, _PREPARING = "starting", "preparing a run"

LINE_LIMIT = 1024 * 1024
"""The longest line of the worker, 1 MiB."""


MAX_SLEEP_SECONDS = 3600.0
"""The longest single wait, an hour: intervals may exceed the limit of the event loop."""


class Supervisor:
    """Runs the worker while the block lasts, except while it is idle.

    If it fails, it is restarted after growing pauses.
    """

    def __init__(self, config: Config, health: Health) -> None:
        """``health``: gets the state and the faults of cleanup."""
        self._config = config
        self._health = health
        self._activity = ""
        self._start_timeout = StartTimeout(READY_SECONDS, MAX_READY_SECONDS)
        self._prepare_timeout = StartTimeout(PREPARE_SECONDS, MAX_READY_SECONDS)
        self._preparing_since = 0.0
        self._fault = ""
        self._process: Process | None = None
        self._pending_report: asyncio.Future[dict[str, Any]] | None = None
        self._orders: set[WorkerOrder] = set()
        self._order_event = asyncio.Event()
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
        await asyncio.wait({self._task})  # awaiting the task would hide a cancellation of the caller
        self._drop_orders("the cleanup worker was stopped")
        self._sleep = None
        self._health.is_asleep = False
        if not self._task.cancelled():
            self._task.result()

    def kill(self) -> None:
        """Kill the worker and its JVM at once. Any thread may call it."""
        if process := self._process:
            _kill(process)

    def set_config(self, config: Config) -> None:
        """Pass new log settings to the worker. All other settings are unchanged."""
        self._config = config
        self._send(_config_line(config))

    def run_now(self) -> bool:
        """Order a run of each job, at once or after the current run; False: there is no worker."""
        return self._order(WorkerOrder.RUN)

    async def count(self) -> dict[str, Any] | None:
        """Order a dry run and return its report; None: there is no worker.

        If ``error`` is not empty, other fields may be missing. Concurrent callers share one report.
        """
        if self._pending_report is None:
            if not self._order(WorkerOrder.COUNT):
                return None
            self._pending_report = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._pending_report)

    def _order(self, order: WorkerOrder) -> bool:
        """Send an order to the worker. An idle worker is started for it."""
        is_restarting = self._sleep is not None or self._health.is_asleep
        if not self._send(encode_order(order).encode()) and not is_restarting:
            return False
        self._orders.add(order)
        self._order_event.set()
        return True

    def _send(self, line: bytes) -> bool:
        if self._process and self._process.stdin and not self._process.stdin.is_closing():
            self._process.stdin.write(line)
            return True
        return False

    def _resolve_report(self, report: dict[str, Any]) -> None:
        if self._pending_report and not self._pending_report.done():
            self._pending_report.set_result(report)
        self._pending_report = None

    def _drop_orders(self, why: str) -> None:
        """Drop all pending orders, and answer a pending count with the error ``why``."""
        self._orders.clear()
        self._resolve_report({"error": why})

    def _reset(self, why: str) -> None:
        """Reset the state, so that the next worker runs all jobs at once."""
        self._sleep, self._health.is_asleep = None, False
        self._drop_orders(why)

    async def _keep_running(self) -> None:
        self._reset("the cleanup worker was restarted")
        pause = MIN_PAUSE_SECONDS
        while True:
            has_run = False
            try:
                self._fault = ""
                has_run, status = await self._run_once()
                if self._sleep and status == 0:
                    pause = MIN_PAUSE_SECONDS
                    await self._sleep_until_due(self._sleep)
                    continue
                if status == EXIT_NO_RESTART and not self._was_ready:
                    self._drop_orders("there is no cleanup worker")
                    return
                reason = self._fault or f"the cleanup worker ended with status {status}"
            except TimeoutError:
                reason = f"the cleanup worker hung ({self._activity}), and was killed"
                if self._activity in (_STARTING, _PREPARING):
                    limit = self._start_timeout if self._activity == _STARTING else self._prepare_timeout
                    limit.extend()
                    reason += f"; the next one gets {limit.seconds:.0f} seconds to start"
            except (OSError, ValueError) as error:  # it could not be started, or sent a malformed line
                reason = f"the cleanup worker failed: {error}"
            self._reset("the cleanup worker has ended")
            self._health.set_fault(HealthPart.CLEANUP, reason)
            self._health.worker_ends += 1
            pause = MIN_PAUSE_SECONDS if has_run else min(2 * pause, MAX_PAUSE_SECONDS)
            log.error("cleanup_worker_ended", reason=reason, restart_in_seconds=pause)
            await asyncio.sleep(pause)

    async def _sleep_until_due(self, sleep: WorkerSleep) -> None:
        """Wait until the worker has to be started for its next run, or for an order."""
        self._health.is_asleep = True
        self._health.next_run_at = time.time() + sleep.due_in
        log.debug("cleanup_asleep", wakes_in_seconds=round(max(0.0, sleep.due_in - self._lead.seconds), 1))
        while not self._orders:
            remaining = sleep.due_in - self._lead.seconds
            if remaining <= 0:
                return
            self._order_event.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(remaining, MAX_SLEEP_SECONDS)):
                    await self._order_event.wait()
        if self._orders != {WorkerOrder.COUNT}:
            self._sleep = None  # the worker runs each job at once

    async def _run_once(self) -> tuple[bool, int]:
        """Run one worker process; return whether it completed a run, and its exit status."""
        sleep, has_run = self._sleep, False
        process = await self._start_worker(sleep)
        self._process, self._sleep, self._health.is_asleep = process, None, False
        self._health.worker = process.pid
        self._health.is_waking = True
        try:
            if process.stdin and process.stdout:  # both are pipes
                process.stdin.write(_config_line(self._config))
                if not sleep:
                    self._orders.discard(WorkerOrder.RUN)  # it runs each job at once anyway
                for order in self._orders:
                    process.stdin.write(encode_order(order).encode())
                self._activity = _STARTING
                began_at = self._due_at = time.monotonic()
                if sleep:
                    self._due_at += sleep.due_in
                async with asyncio.timeout(self._start_timeout.seconds) as limit:
                    async for line in process.stdout:
                        message = decode_message(line)
                        self._record_start(message, time.monotonic() - began_at, was_idle=sleep is not None)
                        has_run |= self._handle(message)
                        limit.reschedule(asyncio.get_running_loop().time() + self._timeout_after(message))
                    self._activity = "ending"
                    limit.reschedule(asyncio.get_running_loop().time() + KILL_SECONDS)
                    await process.wait()
            return has_run, await process.wait()
        finally:
            self._process = None
            self._health.worker = None
            self._health.is_in_run = self._health.is_waking = False
            self._health.next_run_at = None
            await _stop_process(process)

    async def _start_worker(self, sleep: WorkerSleep | None) -> Process:
        """Start a worker. ``sleep``: the schedule of the idle one; None: run all jobs at once."""
        # -P: modules are not imported from the working directory. SIGCONT: a worker exits when its input ends, and
        # removes its files first; a stopped one (SIGSTOP) has to be continued for that.
        schedule_arguments = [encode_idle(sleep.left, time.monotonic())] if sleep else []
        return await asyncio.create_subprocess_exec(
            *parent_bound_command(
                sys.executable, "-P", "-m", "spark.worker", *schedule_arguments, death_signal=signal.SIGCONT
            ),
            stdin=PIPE,
            stdout=PIPE,
            limit=LINE_LIMIT,
            start_new_session=True,
        )

    def _record_start(self, message: WorkerMessage, seconds: float, *, was_idle: bool) -> None:
        """Record how long a worker and its Java took to start. ``seconds``: since the start of the process."""
        if self._activity == _PREPARING and message is not WorkerState.PREPARING:
            self._prepare_timeout.record(time.monotonic() - self._preparing_since)
        if isinstance(message, JavaStarted):
            self._health.java_starts += 1
            self._health.java_start_seconds = message.seconds
            self._lead.record_java(message.seconds)
            log.debug("cleanup_java_started", seconds=round(message.seconds, 1))
        elif message is WorkerState.READY:
            self._start_timeout.record(seconds)
            self._lead.record_worker(seconds)
            if was_idle:
                log.debug("cleanup_woken")

    def _timeout_after(self, message: WorkerMessage) -> float:
        """Return the seconds until the worker has to send its next message. Runs limit their own time."""
        if message in (WorkerState.BEGAN, WorkerState.WAITING, WorkerState.COUNTING):
            activities = {WorkerState.BEGAN: "in a run", WorkerState.WAITING: "waiting for another run"}
            self._activity = activities.get(message, "in a dry run")
            copy_seconds = len(self._config.vault_copies) * copying.TIMEOUT_SECONDS  # it may wait for each copy
            return self._config.cleanup.max_run_time + copy_seconds + KILL_SECONDS
        if message is WorkerState.PREPARING:
            self._activity = _PREPARING
            self._preparing_since = time.monotonic()
            return self._prepare_timeout.seconds
        if isinstance(message, WorkerIdle):
            self._activity = "falling asleep"
            return KILL_SECONDS
        self._activity = "between runs"
        return max(0.0, self._due_at - time.monotonic()) + KILL_SECONDS

    def _handle(self, message: WorkerMessage) -> bool:
        """Handle a message of the worker. Return whether it reports a successful run."""
        self._record_schedule(message)
        match message:
            case WorkerFault():
                self._fault = message.reason
                self._health.set_fault(HealthPart.CLEANUP, self._fault)
                log.error("cleanup_unavailable", reason=message.reason)
            case WorkerState.READY if not self._was_ready:
                self._was_ready = True
                interval = self._config.cleanup_interval
                log.info("cleanup_ready", engine=self._config.cleanup.engine, interval_seconds=interval)
            case WorkerState.BEGAN:
                log.debug("cleanup_began", engine=self._config.cleanup.engine)
            case OrderAccepted():
                self._orders.discard(message.order)
            case WorkerIdle():
                self._sleep = WorkerSleep(message, time.monotonic())
            case RunEnded():
                return self._record_run(message.report)
            case DryRunEnded():
                self._resolve_report(message.report)
        return False

    def _record_schedule(self, message: WorkerMessage) -> None:
        """Record the worker's state and the time of the next run."""
        health = self._health
        if isinstance(message, WorkerState):
            health.is_in_run = message is WorkerState.BEGAN
            health.is_waking = message is WorkerState.PREPARING
        elif not isinstance(message, OrderAccepted):
            health.is_in_run = health.is_waking = False
        if isinstance(message, JavaStarted | RunEnded | DryRunEnded | WorkerIdle | WorkerFault):
            health.next_run_at = None if message.due_in is None else time.time() + message.due_in
            self._due_at = time.monotonic() + (message.due_in or 0.0)

    def _record_run(self, report: dict[str, Any]) -> bool:
        """Record the report of a run; return whether it succeeded."""
        self._health.record_run(report)
        if report["error"]:
            self._health.set_run_error(report["job"], report["error"])
            log.error("cleanup_run", **report)
        else:
            self._health.show_run_errors()
            log.info("cleanup_run", **report)
        return not report["error"]


def _config_line(config: Config) -> bytes:
    return config.to_json().encode() + b"\n"


async def _stop_process(process: Process) -> None:
    """Close the worker's input, and kill it and its JVM after at most STOP_SECONDS.

    If this is cancelled, it is killed at once.
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
