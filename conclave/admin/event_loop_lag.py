"""Measures how late the event loop comes to what is due: while it is late, no client is answered."""

import time

from conclave.measures import Histogram

LOOK_SECONDS = 0.25
"""Four times a second the loop is asked to come, and it is noted how late it does."""

WINDOW_SECONDS = 60.0


class LoopLag:
    """How late the event loop was: ``lags``, and the worst of the last minute or two."""

    def __init__(self) -> None:
        """Begin with nothing measured."""
        self.lags = Histogram()
        self._worst = (0.0, 0.0)
        """Of this window and of the one before."""
        self._window_ends = time.monotonic() + WINDOW_SECONDS
        self._due = time.monotonic() + LOOK_SECONDS

    @property
    def worst(self) -> float:
        """The longest lag, in seconds, of the last one to two minutes."""
        return max(self._worst)

    async def measure(self) -> None:
        """Note how late this is called: it is due LOOK_SECONDS after the last time."""
        now = time.monotonic()
        late = max(0.0, now - self._due)  # the loop counts in milliseconds, and may come a little early
        self.lags.note(late)
        this, before = self._worst
        if now >= self._window_ends:
            self._window_ends = now + WINDOW_SECONDS
            this, before = 0.0, this
        self._worst = max(this, late), before
        self._due = time.monotonic() + LOOK_SECONDS
