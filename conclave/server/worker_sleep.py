"""For how long there is no cleanup worker, how early the next one is started, and for how long it may start."""

import time
from dataclasses import dataclass

from conclave.system.worker_protocol import WorkerIdle

FIRST_LEAD_SECONDS = 20.0
"""A worker is started 20 seconds before its run, as long as it is not known how long it takes to start it and Java."""

LEAD_FACTOR = 1.5
"""Once that is known, it is started earlier by half as much again: the machine may be busier than the last time."""

MIN_LEAD_SECONDS = 2.0
MAX_LEAD_SECONDS = 120.0


@dataclass(frozen=True)
class WorkerSleep:
    """What a worker has said that fell asleep, and when: seconds of the monotonic clock."""

    told: WorkerIdle
    since: float

    @property
    def left(self) -> WorkerIdle:
        """What it would say now."""
        return self.told.later(time.monotonic() - self.since)

    @property
    def due_in(self) -> float:
        """Seconds until its next run."""
        return self.left.due_in


class StartLead:
    """How many seconds before its run a worker is started: learned from the last starts, of a worker and of Java."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self.seconds = FIRST_LEAD_SECONDS
        self._worker = 0.0

    def note_worker(self, seconds: float) -> None:
        """Note how long a worker took to be ready, without Java."""
        self._worker = seconds

    def note_java(self, seconds: float) -> None:
        """Note how long Java took to start."""
        self.seconds = min(MAX_LEAD_SECONDS, max(MIN_LEAD_SECONDS, LEAD_FACTOR * (self._worker + seconds)))


class StartTimeout:
    """For how many ``seconds`` a stage of a worker's start may last: twice as long each time that was not enough.

    A stage that ends says how long it takes here: from then on it may last twice that.
    """

    def __init__(self, least: float, most: float) -> None:
        """Begin with ``least`` seconds."""
        self.seconds = self._least = least
        self._most = most

    def was_too_short(self) -> None:
        """Note that a worker did not get through the stage in time."""
        self._allow(2 * self.seconds)

    def note(self, seconds: float) -> None:
        """Note how long a worker took."""
        self._allow(2 * seconds)

    def _allow(self, seconds: float) -> None:
        self.seconds = min(max(self._least, seconds), self._most)
