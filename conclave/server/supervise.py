"""Starts the cleanup worker as a process of its own, restarts it, and reports its health."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from typing import Any, Self

from conclave.config.settings import Config
from conclave.health.parts import Health, HealthPart
from conclave.logs.setup import get_logger
from conclave.system.child_process import tied
from conclave.system.worker_protocol import (
    EXIT_GIVE_UP,
    Counted,
    Ended,
    Fault,
    Message,
    Order,
    State,
    from_line,
    order_line,
)

log = get_logger(__name__)

FIRST_PAUSE_SECONDS = 1.0
"""The pause before a worker is started again that had completed a run."""

LONGEST_PAUSE_SECONDS = 60.0
"""The pause doubles each time that a worker ends without a completed run, up to this."""

STOP_SECONDS = 1.0
"""The worker gets 1 second to end by itself. Then it is killed: a run can be stopped anywhere."""

READY_SECONDS = 120.0
"""The worker gets 2 minutes to start Spark."""

KILL_SECONDS = 30.0
"""A worker hangs if it is silent for 30 seconds longer than its task may take."""

LINE_LIMIT = 1024 * 1024
"""At most 1 MiB in one line of the worker."""


class Supervisor:
    """Runs the worker while the block lasts. If it dies, starts it again, after longer and longer pauses."""

    def __init__(self, config: Config, health: Health) -> None:
        """``health`` is told when cleanup does not work."""
        self._config = config
        self._health = health
        self._doing = ""
        self._fault = ""
        self._process: Process | None = None
        self._failing: dict[str, str] = {}
        self._counting: asyncio.Future[dict[str, Any]] | None = None

    async def __aenter__(self) -> Self:
        """Start the worker in the background."""
        self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the worker."""
        await self._stop()

    def _start(self) -> None:
        self._task = asyncio.create_task(self._keep_running())

    async def _stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})  # awaited itself, it would hide a cancellation of the caller
        if not self._task.cancelled():
            self._task.result()

    def kill(self) -> None:
        """Kill the worker and its JVM at once, from whichever thread: this process is about to end by force."""
        if process := self._process:
            _kill(process)

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Have no worker while the block lasts, even if that breaks off a run; then start one with what ``follow`` has.

        A run goes by one policy from its beginning to its end.
        """
        await self._stop()
        try:
            yield
        finally:
            self._failing.clear()
            self._start()

    def follow(self, config: Config) -> None:
        """Have the worker go by other settings, from its next run on. Their policy has to be the one before.

        The settings of the log count at once.
        """
        self._config = config
        self._send(_line(config))

    def run_now(self) -> bool:
        """Have the worker do each of its jobs at once, or after the run under way; False: there is no worker."""
        return self._send(order_line(Order.RUN).encode())

    async def count(self) -> dict[str, Any] | None:
        """Have the worker count what a run would delete, and return its report; None: there is no worker.

        If ``error`` is not empty, the rest may be missing. All who ask at the same time get the same report.
        """
        if self._counting is None:
            if not self._send(order_line(Order.COUNT).encode()):
                return None
            self._counting = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._counting)

    def _send(self, line: bytes) -> bool:
        if self._process and self._process.stdin and not self._process.stdin.is_closing():
            self._process.stdin.write(line)
            return True
        return False

    def _note_counted(self, report: dict[str, Any]) -> None:
        if self._counting and not self._counting.done():
            self._counting.set_result(report)
        self._counting = None

    async def _keep_running(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            ran = False
            try:
                self._fault = ""
                ran, status = await self._run_once()
                if status == EXIT_GIVE_UP:
                    return
                reason = self._fault or f"the cleanup worker ended with status {status}"
            except TimeoutError:
                reason = f"the cleanup worker hung ({self._doing}), and was killed"
            except (OSError, ValueError) as error:  # it could not be started, or sent a line that is no message
                reason = f"the cleanup worker failed: {error}"
            self._health.fault(HealthPart.CLEANUP, reason)
            self._health.worker_ends += 1
            pause = FIRST_PAUSE_SECONDS if ran else min(2 * pause, LONGEST_PAUSE_SECONDS)
            log.error("cleanup_worker_ended", reason=reason, restart_in_seconds=pause)
            await asyncio.sleep(pause)

    async def _run_once(self) -> tuple[bool, int]:
        """Run a worker to its end; return whether it completed a run well, and its exit status."""
        # -P: files in the working directory must not be taken for the worker's own modules. SIGCONT: a worker ends by
        # itself when its input ends, and removes its files first. One that was stopped (SIGSTOP) has to be woken.
        process = await asyncio.create_subprocess_exec(
            *tied(sys.executable, "-P", "-m", "spark.worker", by=signal.SIGCONT),
            stdin=PIPE,
            stdout=PIPE,
            limit=LINE_LIMIT,
            start_new_session=True,
        )
        ran = False
        self._process = process
        self._health.worker = process.pid
        try:
            if process.stdin and process.stdout:  # both were asked for as pipes
                process.stdin.write(_line(self._config))
                self._doing = "starting"
                async with asyncio.timeout(READY_SECONDS) as limit:
                    async for line in process.stdout:
                        told = from_line(line)
                        limit.reschedule(asyncio.get_running_loop().time() + self._patience(told))
                        ran |= self._hear(told)
                    self._doing = "ending"
                    limit.reschedule(asyncio.get_running_loop().time() + KILL_SECONDS)
                    await process.wait()
            return ran, await process.wait()
        finally:
            self._process = None
            self._health.worker = None
            self._note_schedule(None)
            self._note_counted({"error": "the cleanup worker ended meanwhile"})
            await _end(process)

    def _patience(self, told: Message) -> float:
        """Return the seconds until the worker has to send its next message. A run ends itself in time."""
        if told in (State.BEGAN, State.WAITING, State.COUNTING):
            self._doing = {State.BEGAN: "in a run", State.WAITING: "waiting for another run"}.get(told, "in a dry run")
            return self._config.cleanup.max_run_time + KILL_SECONDS
        self._doing = "between runs"
        due_in = told.due_in if isinstance(told, Ended | Counted | Fault) else None
        return max(0.0, due_in or 0.0) + KILL_SECONDS

    def _hear(self, told: Message) -> bool:
        """Take in a message of the worker. Return whether it completed a run well."""
        self._note_schedule(told)
        match told:
            case Fault():
                self._fault = told.reason
                self._health.fault(HealthPart.CLEANUP, self._fault)
                log.error("cleanup_unavailable", reason=told.reason)
            case State.READY:
                interval = self._config.cleanup_interval
                log.info("cleanup_ready", engine=self._config.cleanup.engine, interval_seconds=interval)
            case State.BEGAN:
                log.debug("cleanup_began", engine=self._config.cleanup.engine)
            case Ended():
                return self._note_run(told.report)
            case Counted():
                self._note_counted(told.report)
        return False

    def _note_schedule(self, told: Message | None) -> None:
        """Note whether the worker is in a run, and when the next one begins. None: there is no worker."""
        due_in = told.due_in if isinstance(told, Ended | Counted | Fault) else None
        self._health.is_in_run = told == State.BEGAN
        self._health.next_run_at = None if due_in is None else time.time() + due_in

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


def _line(config: Config) -> bytes:
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
