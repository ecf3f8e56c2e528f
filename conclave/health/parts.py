"""What does not work in the server, part by part, and how the last cleanup run went."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from conclave.logs import get_logger
from conclave.store.faults import StoreError
from conclave.store.overdue import Worst

log = get_logger(__name__)


class HealthPart(StrEnum):
    """A part of the server that may fail while the rest works. docs/operations.md says what each means."""

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
    LEDGER = "ledger"
    CHECKPOINTS = "checkpoints"
    OVERDUE = "overdue"
    OVERDUE_WATCH = "overdue_watch"


class Health:
    """The faults that last, and how cleanup goes. Without faults all is well.

    ``last_run`` and ``last_runs``: the report of the last run, and of the last one of each job. ``runs``: how many
    there were, by job and outcome. ``deleted``: what these have deleted, by rule. ``overdue``: as of the last look.
    """

    def __init__(self) -> None:
        """Begin without faults."""
        self._faults: dict[str, str] = {}
        self.last_run: dict[str, Any] | None = None
        self.last_runs: dict[str, dict[str, Any]] = {}
        self.runs: Counter[tuple[str, str]] = Counter()
        self.deleted: Counter[str] = Counter()
        self.overdue = Worst()

    def note_run(self, report: dict[str, Any]) -> None:
        """Note the report of a cleanup run, as ``Report.to_mapping`` makes it."""
        self.last_run = self.last_runs[report["job"]] = report
        self.runs[report["job"], report["outcome"]] += 1
        self.deleted.update(report["deleted"])

    def fault(self, part: str, text: str) -> None:
        """Note that ``part`` does not work, and why. It replaces an earlier fault of the part."""
        self._faults[part] = text

    def mend(self, part: str) -> None:
        """Note that ``part`` works."""
        self._faults.pop(part, None)

    @contextmanager
    def duty(self, part: HealthPart) -> Iterator[None]:
        """Run the block as a duty. If it raises, ``part`` does not work; the error goes no further.

        If the block succeeds, ``part`` works. The log gets the first failure, and the first success after it.
        """
        had_failed = part in self._faults
        try:
            yield
        except Exception as error:
            if not had_failed:
                if isinstance(error, StoreError | sqlite3.Error | OSError):
                    log.error("background_duty_failed", duty=part, reason=str(error))
                else:
                    log.exception("background_duty_failed", duty=part)
            self.fault(part, f"{type(error).__name__}: {error}")
        else:
            if had_failed:
                log.info("background_duty_works_again", duty=part)
            self.mend(part)

    @property
    def faults(self) -> dict[str, str]:
        """What does not work, by part."""
        return dict(self._faults)

    @property
    def status(self) -> str:
        """``ok`` or ``degraded``."""
        return "degraded" if self._faults else "ok"
