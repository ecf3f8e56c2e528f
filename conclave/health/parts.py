"""What does not work in the server, part by part, and how the last cleanup run went."""

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
    """A part of the server that may fail while the rest works. docs/operations/health.md says what each means."""

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
    """Whether the server serves: it is about to, it does, or it is about to end."""

    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


class Cleanup(StrEnum):
    """What the cleanup worker does. Between runs that are far apart there is none: it is asleep, and nothing is wrong.

    It is about to be ready for a run, is in one, waits for the next one. NONE: there is none, and the part ``cleanup``
    says why, or it is about to be started.
    """

    ASLEEP = "asleep"
    WAKING = "waking"
    RUNNING = "running"
    AWAKE = "awake"
    NONE = "none"


NOTED_RUNS = 100
"""Of the last 100 runs it is known that they were noted."""


class Health:
    """The faults that last, and how cleanup goes. Without faults all is well.

    ``last_run`` and ``last_runs``: the report of the last run, and of the last one of each job. ``runs``: how many
    there were, by job and outcome. ``succeeded``: when the last one of each job that went well has ended, Unix seconds.
    ``run_seconds``: how long all of each job took. ``deleted``: what these have deleted, by rule. ``returned``: the
    bytes that they gave back, by tier. ``archived``: how many messages they moved to the archive. ``overdue``: as of
    the last look. ``worker``: the process id of the cleanup worker while there is one. ``worker_ends``: how often one
    has ended and was to be started again. ``is_in_run``: whether the worker is in a run. ``is_asleep``: whether there
    is none since nothing is to be done for a while. ``is_waking``: whether it is being started, or starts Java.
    ``java_starts`` and ``java_start_seconds``: how often it has started Java, and how long that took the last time.
    ``next_run_at``: when it does the next run, Unix seconds; None if that is not known. ``certificate_ends``: when
    the certificate in use expires, Unix seconds; None without TLS. Its file may contain a newer one.
    """

    def __init__(self, certificate_ends: int | None = None) -> None:
        """Begin without faults."""
        self.certificate_ends = certificate_ends
        self._faults: dict[str, str] = {}
        self._noted: deque[tuple[str, int, int, str]] = deque(maxlen=NOTED_RUNS)
        self.last_run: dict[str, Any] | None = None
        self.last_runs: dict[str, dict[str, Any]] = {}
        self.runs: Counter[tuple[str, str]] = Counter()
        self.succeeded: dict[str, int] = {}
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
        """Note the report of a cleanup run, as ``Report.to_mapping`` makes it, of any process.

        Those of the worker come from it, and once more from the history. They count once.
        """
        job = report["job"]
        named = job, report["started_at"], report["finished_at"], report["outcome"]
        if named in self._noted:
            return
        self._noted.append(named)
        self.last_run = self.last_runs[job] = report
        self.runs[job, report["outcome"]] += 1
        self.run_seconds[job] += max(0, report["finished_at"] - report["started_at"])
        if not report["error"]:
            self.succeeded[job] = report["finished_at"]
        self.deleted.update(report["deleted"])
        self.returned.update(database=report["bytes_returned"], archive=report["archive_bytes_returned"])
        self.archived += report["archived"]

    def set_fault(self, part: str, text: str) -> None:
        """Note that ``part`` does not work, and why. It replaces an earlier fault of the part."""
        self._faults[part] = text

    def clear_fault(self, part: str) -> None:
        """Note that ``part`` works."""
        self._faults.pop(part, None)

    @contextmanager
    def duty(self, part: HealthPart) -> Iterator[None]:
        """Run the block as a duty. If it raises, ``part`` does not work; the error goes no further.

        If the block succeeds, ``part`` works. The log gets the first failure, and the first success after it.
        """
        try:
            yield
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever it is, health shows it
            self.record_failure(part, error)
        else:
            if part in self._faults:
                log.info("background_duty_works_again", duty=part)
            self.clear_fault(part)

    def record_failure(self, part: HealthPart, error: BaseException) -> None:
        """Note that ``part`` does not work since a duty has raised ``error``. Call it while that is handled.

        Raises ``error`` if it is the cancellation of the task that runs the duty: that is no failure. A cancellation of
        anything that the duty waits for is one.
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
    def cleanup(self) -> Cleanup:
        """What the cleanup worker does."""
        if self.worker is None:
            return Cleanup.ASLEEP if self.is_asleep else Cleanup.NONE
        if self.is_in_run:
            return Cleanup.RUNNING
        return Cleanup.WAKING if self.is_waking else Cleanup.AWAKE

    @property
    def faults(self) -> dict[str, str]:
        """What does not work, by part."""
        return dict(self._faults)

    @property
    def status(self) -> str:
        """``ok`` or ``degraded``."""
        return "degraded" if self._faults else "ok"
