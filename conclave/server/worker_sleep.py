"""Timing of the cleanup worker: its idle time, how early the next one is started, and the limits of a start."""

import time
from dataclasses import dataclass

from conclave.system.worker_protocol import WorkerIdle

FIRST_LEAD_SECONDS = 20.0
"""The first worker is started 20 seconds before its run: the duration of a start is not known yet."""

LEAD_FACTOR = 1.5
"""Later ones are started one and a half times that duration before the run: the machine may be busier."""

MIN_LEAD_SECONDS = 2.0
MAX_LEAD_SECONDS = 120.0


@dataclass(frozen=True)
class WorkerSleep:
    """The last message of a worker that became idle, and its time on the monotonic clock."""

    message: WorkerIdle
    since: float

    @property
    def left(self) -> WorkerIdle:
        """The message with the time that is left until the next run."""
        return self.message.later(time.monotonic() - self.since)

    @property
    def due_in(self) -> float:
        """Seconds until its next run."""
        return self.left.due_in


class StartLead:
    """How many seconds before its run a worker is started, by the duration of the last start."""

    def __init__(self) -> None:
        self.seconds = FIRST_LEAD_SECONDS
        self._worker = 0.0

    def record_worker(self, seconds: float) -> None:
        """Record how long a worker took to be ready, without Java."""
        self._worker = seconds

    def record_java(self, seconds: float) -> None:
        """Record how long Java took to start."""
        self.seconds = min(MAX_LEAD_SECONDS, max(MIN_LEAD_SECONDS, LEAD_FACTOR * (self._worker + seconds)))


class StartTimeout:
    """The time limit of a stage of a worker's start, in ``seconds``. A timeout doubles it.

    Once a stage has completed, its limit is twice the time that it took.
    """

    def __init__(self, minimum: float, maximum: float) -> None:
        """``minimum``: the first limit. ``maximum``: the highest."""
        self.seconds = self._minimum = minimum
        self._maximum = maximum

    def extend(self) -> None:
        """Double the limit after a timeout."""
        self.record(self.seconds)

    def record(self, seconds: float) -> None:
        """Set the limit after a stage that took ``seconds``."""
        self.seconds = min(max(self._minimum, 2 * seconds), self._maximum)
