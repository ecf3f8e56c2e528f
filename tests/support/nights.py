"""Nights that pass while everything is stopped, and the version of the program before this one."""

import os
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from conclave.clock import Reading, SystemClock

ROOT = Path(__file__).resolve().parents[2]
_MIGRATIONS = "conclave/store/engine/migrations"

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

    def environment(self, program: Path = ROOT) -> dict[str, str]:
        """Return the variables for what is started now. ``program``: the sources of which version."""
        return {"PYTHONPATH": f"{self._folder}{os.pathsep}{program}", "CONCLAVE_SLEPT": str(self.slept)}


def version_before(folder: Path) -> Path:
    """Unpack the newest sources whose database this version has to migrate, and return their folder; or skip."""
    ours = _migrations("HEAD")
    for commit in _git("log", "--format=%H", "--", _MIGRATIONS).decode().split():
        theirs = _migrations(commit)
        if theirs and len(theirs) < len(ours) and theirs == ours[: len(theirs)]:
            with tarfile.open(fileobj=BytesIO(_git("archive", commit))) as sources:
                sources.extractall(folder, filter="data")
            return folder
    pytest.skip("needs the commits before the newest migration, by git: there is the version to upgrade from")


def _migrations(commit: str) -> list[str]:
    """Return the migrations of a commit in their order, with the hashes of what is in them."""
    lines = _git("ls-tree", commit, f"{_MIGRATIONS}/").decode().splitlines()
    return [line for line in lines if line.endswith(".sql")]


def _git(*words: str) -> bytes:
    ran = subprocess.run(["git", *words], cwd=ROOT, capture_output=True)
    if ran.returncode:
        pytest.skip("needs a checkout by git: there is the version to upgrade from")
    return ran.stdout
