"""Nights that pass while everything is stopped."""

import os
from pathlib import Path

from conclave.clock import Reading, SystemClock

ROOT = Path(__file__).resolve().parents[2]

_SLEPT = """
import os, time

_slept, _time, _gettime = int(os.environ["CONCLAVE_SLEPT"]), time.time, time.clock_gettime
time.time = lambda: _time() + _slept
time.clock_gettime = lambda which: _gettime(which) + (_slept if which == time.CLOCK_BOOTTIME else 0)
"""
"""For each Python that is started: the machine has slept. What runs on, as a monotonic clock, did not count that."""


class SleptClock(SystemClock):
    """The clock of somebody within the test."""

    def __init__(self, nights: "Nights") -> None:
        super().__init__()
        self._nights = nights

    def now(self) -> int:
        return super().now() + self._nights.slept

    def read(self) -> Reading:
        reading = super().read()
        return reading._replace(since_boot=reading.since_boot + self._nights.slept)


class Nights:
    """How long the machine has slept."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(_SLEPT)
        self._folder = folder
        self.slept = 0

    def environment(self) -> dict[str, str]:
        """Return the variables for what is started now."""
        return {"PYTHONPATH": f"{self._folder}{os.pathsep}{ROOT}", "CONCLAVE_SLEPT": str(self.slept)}
