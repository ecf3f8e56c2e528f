"""What does not work in the server, part by part, and how the last cleanup run went."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from conclave.logs import get_logger
from conclave.store.faults import StoreError

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
    CHECKPOINTS = "checkpoints"
    OVERDUE = "overdue"
    OVERDUE_WATCH = "overdue_watch"


class Health:
    """The faults that last, and the report of the last cleanup run. Without faults all is well."""

    def __init__(self) -> None:
        """Begin without faults."""
        self._faults: dict[str, str] = {}
        self.last_run: dict[str, Any] | None = None

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
