"""Clocks. Code takes a Clock as a parameter, so that tests can set the time."""

import time
from pathlib import Path
from typing import NamedTuple, Protocol

_SINCE_BOOT: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""CLOCK_BOOTTIME also counts the time during which the machine was suspended."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Reading(NamedTuple):
    """Two clocks at one moment: the wall clock, and the monotonic one, which cannot be set."""

    wall: int
    """Unix seconds."""
    since_boot: int
    """Seconds since the machine was started."""
    boot_id: str
    """The id of that boot; "" where the system has none."""


class Moment(NamedTuple):
    """The time to act on, and whether it is in doubt."""

    now: int
    """The Unix second to act on."""
    earliest: int
    """A Unix second that has certainly passed, even if the clock is wrong. Equals ``now`` unless the clock is
    ``in_doubt`` and ahead of the last time that was certainly correct.
    """
    in_doubt: bool = False


class Clock(Protocol):
    """A source of the time."""

    def now(self) -> int:
        """Return the wall clock in whole Unix seconds."""
        ...

    def moment(self) -> Moment:
        """Return the time, and whether it is in doubt."""
        ...

    def read(self) -> Reading:
        """Return both clocks at one moment."""
        ...


class SystemClock:
    """The machine's clocks."""

    def __init__(self) -> None:
        """Read the boot id, which cannot change while the process runs."""
        self._boot_id = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""

    def now(self) -> int:
        """Return the wall clock in whole Unix seconds, rounded down."""
        return int(time.time())

    def moment(self) -> Moment:
        """Return the time, which is never in doubt."""
        now = self.now()
        return Moment(now, now)

    def read(self) -> Reading:
        """Return both clocks."""
        return Reading(self.now(), int(time.clock_gettime(_SINCE_BOOT)), self._boot_id)


class FakeClock:
    """A clock for tests. It changes only when a test sets it."""

    def __init__(self, now: int = 1_700_000_000, set_by: int = 0, boot_id: str = "fake") -> None:
        """Start at ``now``, in Unix seconds. ``set_by``: seconds by which the wall clock was set forward."""
        self.seconds = now
        self.set_by = set_by
        self.boot_id = boot_id

    def now(self) -> int:
        """Return the seconds last set."""
        return self.seconds

    def moment(self) -> Moment:
        """Return the time, which is never in doubt."""
        return Moment(self.seconds, self.seconds)

    def read(self) -> Reading:
        """Return both clocks."""
        return Reading(self.seconds, self.seconds - self.set_by, self.boot_id)

    def advance(self, seconds: int) -> None:
        """Advance both clocks."""
        self.seconds += seconds

    def set_wrong(self, seconds: int) -> None:
        """Set the wall clock forward by ``seconds``, without advancing the monotonic clock. Negative sets it back."""
        self.seconds += seconds
        self.set_by += seconds
