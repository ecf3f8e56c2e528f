"""The time, as a parameter: whatever needs it takes a Clock."""

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the wall clock."""

    def now(self) -> int:
        """Return the time in whole Unix seconds."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def now(self) -> int:
        """Return the time in whole Unix seconds, rounded down."""
        return int(time.time())


class FakeClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, now: int = 1_700_000_000) -> None:
        """Start at ``now``, Unix seconds."""
        self.seconds = now

    def now(self) -> int:
        """Return the seconds last set."""
        return self.seconds

    def advance(self, seconds: int) -> None:
        """Move by ``seconds``; a negative number moves back."""
        self.seconds += seconds
