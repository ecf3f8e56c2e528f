"""Measures the lag of the event loop, during which the server answers no client."""

import time

from conclave.measures import Histogram

SAMPLE_INTERVAL_SECONDS = 0.25
"""The interval of measurements."""

WINDOW_SECONDS = 60.0


class LoopLag:
    """The lag of the event loop: ``lags``, and the maximum of the last one to two minutes."""

    def __init__(self) -> None:
        """Start without measurements."""
        self.lags = Histogram()
        self._maximums = (0.0, 0.0)
        """The maximum of this window, and of the previous one."""
        self._window_ends = time.monotonic() + WINDOW_SECONDS
        self._due = time.monotonic() + SAMPLE_INTERVAL_SECONDS

    @property
    def worst(self) -> float:
        """The longest lag, in seconds, of the last one to two minutes."""
        return max(self._maximums)

    async def measure(self) -> None:
        """Record the delay of this call, which is due SAMPLE_INTERVAL_SECONDS after the previous call."""
        now = time.monotonic()
        delay = max(0.0, now - self._due)  # the loop's timers may fire slightly early
        self.lags.record(delay)
        current, previous = self._maximums
        if now >= self._window_ends:
            self._window_ends = now + WINDOW_SECONDS
            current, previous = 0.0, current
        self._maximums = max(current, delay), previous
        self._due = time.monotonic() + SAMPLE_INTERVAL_SECONDS
