"""Tells the time. Code takes a Clock as a parameter, so that tests can set it."""

import time
from pathlib import Path
from typing import NamedTuple, Protocol

_SINCE_BOOT: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Where the system can tell, also what the machine slept."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Reading(NamedTuple):
    """Two clocks at one moment: the wall clock, and the monotonic one, which cannot be set."""

    wall: int
    """Unix seconds."""
    since_boot: int
    """Seconds since the machine was started."""
    boot_id: str
    """Names that start of the machine; "" where the system has no such name."""


class Moment(NamedTuple):
    """A moment by a clock."""

    now: int
    """The Unix second to act on."""
    earliest: int
    """What ends by this Unix second has ended, also if the clock is wrong. It is ``now`` unless the clock ``in_doubt``
    is further on than the last time that was right.
    """
    in_doubt: bool = False


class Clock(Protocol):
    """Tells the time."""

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
        """Read the id of this start of the machine. It stays the same while the process lives."""
        self._boot_id = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""

    def now(self) -> int:
        """Return the wall clock in whole Unix seconds, rounded down."""
        return int(time.time())

    def moment(self) -> Moment:
        """Return the time. Nothing here doubts it."""
        now = self.now()
        return Moment(now, now)

    def read(self) -> Reading:
        """Return both clocks."""
        return Reading(self.now(), int(time.clock_gettime(_SINCE_BOOT)), self._boot_id)


class FakeClock:
    """A clock for tests. It stands still until a test moves it."""

    def __init__(self, now: int = 1_700_000_000, set_by: int = 0, boot_id: str = "fake") -> None:
        """Start at ``now``, in Unix seconds. ``set_by``: seconds by which the wall clock was set forward."""
        self.seconds = now
        self.set_by = set_by
        self.boot_id = boot_id

    def now(self) -> int:
        """Return the seconds last set."""
        return self.seconds

    def moment(self) -> Moment:
        """Return the time. Nothing here doubts it."""
        return Moment(self.seconds, self.seconds)

    def read(self) -> Reading:
        """Return both clocks."""
        return Reading(self.seconds, self.seconds - self.set_by, self.boot_id)

    def advance(self, seconds: int) -> None:
        """Let time pass."""
        self.seconds += seconds

    def set_wrong(self, seconds: int) -> None:
        """Set the wall clock forward by ``seconds`` while no time passes. A negative number sets it back."""
        self.seconds += seconds
        self.set_by += seconds
