"""What a run costs: CPU seconds of this process and of its Java, and how long it holds the database's write lock.

What executors of a cluster work is not known here, nor how long single statements of the archive's index take.
"""

from spark.environment import RunEnvironment
from spark.pacer import Pacer
from spark.report import Report


class Costs:
    """Measures from when it is made."""

    def __init__(self, engine: RunEnvironment) -> None:
        """Begin. One run at a time is measured in a process."""
        self._engine = engine
        self._cpu = engine.cpu_seconds()
        Pacer.lock_seconds = Pacer.longest_lock_seconds = 0.0

    def note(self, done: Report) -> None:
        """Write to the report what the run has cost so far."""
        done.cpu_seconds = round(max(0.0, self._engine.cpu_seconds() - self._cpu), 3)
        done.lock_seconds = round(Pacer.lock_seconds, 4)
        done.longest_lock_seconds = round(Pacer.longest_lock_seconds, 4)
