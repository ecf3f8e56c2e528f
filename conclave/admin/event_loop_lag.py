"""Measures the lag of the event loop, during which no client is answered."""

import time

from conclave.measures import Histogram

LOOK_SECONDS = 0.25
"""The interval of measurements."""

WINDOW_SECONDS = 60.0


class LoopLag:
    """The lag of the event loop: ``lags``, and the maximum of the last one to two minutes."""

    def __init__(self) -> None:
        """Start without measurements."""
        self.lags = Histogram()
        self._worst = (0.0, 0.0)
        """The maximum of this window, and of the previous one."""
        self._window_ends = time.monotonic() + WINDOW_SECONDS
        self._due = time.monotonic() + LOOK_SECONDS

    @property
    def worst(self) -> float:
        """The longest lag, in seconds, of the last one to two minutes."""
        return max(self._worst)

    async def measure(self) -> None:
        """Record how late this is called: it is due LOOK_SECONDS after the previous call."""
        now = time.monotonic()
        late = max(0.0, now - self._due)  # the loop's timers may fire slightly early
        self.lags.record(late)
        this, before = self._worst
        if now >= self._window_ends:
            self._window_ends = now + WINDOW_SECONDS
            this, before = 0.0, this
        self._worst = max(this, late), before
        self._due = time.monotonic() + LOOK_SECONDS
