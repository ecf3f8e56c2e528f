"""The faults of the server by part, and the state of cleanup."""

import asyncio
import sqlite3
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from conclave.logs.setup import get_logger
from conclave.store.engine.faults import StoreError
from conclave.store.views.overdue import OverdueTotal

log = get_logger(__name__)


class HealthPart(StrEnum):
    """A part of the server that may fail while others work, see docs/operations/health.md."""

    STORAGE = "storage"
    STORAGE_WATCH = "storage_watch"
    CLEANUP = "cleanup"
    CLOCK = "clock"
    CLOCK_WATCH = "clock_watch"
    ARCHIVE = "archive"
    ARCHIVE_WATCH = "archive_watch"
    ALIVE = "alive"
    SESSION_ACTIVITY = "session_activity"
    OUTBOX = "outbox"
    TIMERS = "timers"
    JOINS = "joins"
    VAULT = "vault"
    VAULT_COPIES = "vault_copies"
    LEDGER = "ledger"
    CHECKPOINTS = "checkpoints"
    OVERDUE = "overdue"
    OVERDUE_WATCH = "overdue_watch"
    RUN_HISTORY = "run_history"
    CONFIGURATION = "configuration"
    CONNECTIONS = "connections"
    EVENT_LOOP_LAG = "event_loop_lag"
    SEND_RATE = "send_rate"


class Phase(StrEnum):
    """The phase of the server."""

    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


class CleanupState(StrEnum):
    """The state of the cleanup worker.

    ASLEEP: it has exited until the next run. WAKING: it starts, or starts Java. RUNNING: in a run. AWAKE: it waits for
    the next run. NONE: there is no worker, or it is about to be started; see the part ``cleanup``.
    """

    ASLEEP = "asleep"
    WAKING = "waking"
    RUNNING = "running"
    AWAKE = "awake"
    NONE = "none"


RECENT_RUNS = 100
"""The number of recent runs that are remembered, to ignore repeated reports."""


class Health:
    """The current faults, and the state of cleanup.

    ``last_run`` and ``last_runs``: the report of the last run, and of the last one of each job. ``runs``: counts by job
    and outcome. ``succeeded``: the end of the last successful run of each job, Unix seconds. ``run_seconds``: total by
    job. ``deleted``: deletions by rule. ``returned``: bytes returned, by tier. ``archived``: messages moved to the
    archive. ``overdue``: the result of the last check. ``worker``: the process id of the cleanup worker, if any.
    ``worker_ends``: how often it ended unexpectedly. ``is_in_run``, ``is_asleep`` and ``is_waking``: see CleanupState.
    ``java_starts`` and ``java_start_seconds``: the number of Java starts, and the duration of the last one.
    ``next_run_at``: Unix seconds; None if unknown. ``certificate_ends``: the expiry of the certificate in use, Unix
    seconds; None without TLS. The certificate's file may contain a newer one.
    """

    def __init__(self, certificate_ends: int | None = None) -> None:
        """Start without faults."""
        self.certificate_ends = certificate_ends
        self._faults: dict[str, str] = {}
        self._recent_runs: deque[tuple[str, int, int, str]] = deque(maxlen=RECENT_RUNS)
        self.last_run: dict[str, Any] | None = None
        self.last_runs: dict[str, dict[str, Any]] = {}
        self.runs: Counter[tuple[str, str]] = Counter()
        self.succeeded: dict[str, int] = {}
        self._run_errors: dict[str, str] = {}
        """The last error of the worker's runs, by job; until a run of that job succeeds, in any process."""
        self.run_seconds: Counter[str] = Counter()
        self.deleted: Counter[str] = Counter()
        self.returned: Counter[str] = Counter(database=0, archive=0)
        self.archived = 0
        self.worker: int | None = None
        self.worker_ends = 0
        self.is_in_run = self.is_asleep = self.is_waking = False
        self.java_starts = 0
        self.java_start_seconds = 0.0
        self.next_run_at: float | None = None
        self.phase = Phase.STARTING
        self.overdue = OverdueTotal()

    def record_run(self, report: dict[str, Any]) -> None:
        """Record the report of a cleanup run of any process, see ``Report.to_mapping``.

        Reports of the worker arrive twice: from itself, and from the history of runs. They count once.
        """
        job = report["job"]
        run = job, report["started_at"], report["finished_at"], report["outcome"]
        if run in self._recent_runs:
            return
        self._recent_runs.append(run)
        self.last_run = self.last_runs[job] = report
        self.runs[job, report["outcome"]] += 1
        self.run_seconds[job] += max(0, report["finished_at"] - report["started_at"])
        if not report["error"]:
            self.succeeded[job] = report["finished_at"]
            self._clear_run_error(job)
        self.deleted.update(report["deleted"])
        self.returned.update(database=report["bytes_returned"], archive=report["archive_bytes_returned"])
        self.archived += report["archived"]

    def set_run_error(self, job: str, error: str) -> None:
        """Set the fault of cleanup: the worker's run of ``job`` has failed. A success of another job keeps it."""
        self._run_errors[job] = error
        self.set_fault(HealthPart.CLEANUP, self._run_fault())

    def _clear_run_error(self, job: str) -> None:
        """Clear what ``set_run_error`` has set, unless cleanup has another fault, such as that there is no worker."""
        is_shown = self._faults.get(HealthPart.CLEANUP) == self._run_fault()
        if self._run_errors.pop(job, None) and is_shown:
            self.show_run_errors()

    def show_run_errors(self) -> None:
        """Set the fault of cleanup to the errors of runs, or clear it."""
        if self._run_errors:
            self.set_fault(HealthPart.CLEANUP, self._run_fault())
        else:
            self.clear_fault(HealthPart.CLEANUP)

    def _run_fault(self) -> str:
        return "; ".join(dict.fromkeys(self._run_errors.values()))

    def set_fault(self, part: str, text: str) -> None:
        """Set the fault of ``part``, which replaces an earlier one."""
        self._faults[part] = text

    def clear_fault(self, part: str) -> None:
        """Clear the fault of ``part``."""
        self._faults.pop(part, None)

    @contextmanager
    def duty(self, part: HealthPart) -> Iterator[None]:
        """Run the block as a duty: set the fault of ``part`` if it raises, else clear it.

        Errors are not propagated. The first failure, and the first success after it, are logged.
        """
        try:
            yield
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - health shows every error
            self.record_failure(part, error)
        else:
            if part in self._faults:
                log.info("background_duty_works_again", duty=part)
            self.clear_fault(part)

    def record_failure(self, part: HealthPart, error: BaseException) -> None:
        """Set the fault of ``part`` after a duty raised ``error``. Call it in the except block.

        Raises ``error`` if it is the cancellation of the current task, which is not a failure. The cancellation of an
        awaited task is a failure.
        """
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            if task and task.cancelling():
                raise error
        if part not in self._faults:
            if isinstance(error, StoreError | sqlite3.Error | OSError):
                log.error("background_duty_failed", duty=part, reason=str(error))
            else:
                log.error("background_duty_failed", duty=part, exc_info=error)
        self.set_fault(part, f"{type(error).__name__}: {error}")

    @property
    def cleanup(self) -> CleanupState:
        """The state of the cleanup worker."""
        if self.worker is None:
            return CleanupState.ASLEEP if self.is_asleep else CleanupState.NONE
        if self.is_in_run:
            return CleanupState.RUNNING
        return CleanupState.WAKING if self.is_waking else CleanupState.AWAKE

    @property
    def faults(self) -> dict[str, str]:
        """The faults by part."""
        return dict(self._faults)

    @property
    def status(self) -> str:
        """``ok`` or ``degraded``."""
        return "degraded" if self._faults else "ok"
