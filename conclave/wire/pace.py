"""How slowly a client may take what it gets before it is cut off."""

import time

MIN_RATE = 16 * 1024
"""A client is cut off if it takes less than 16 KiB a second, by its average in a window."""

WINDOW_SECONDS = 60.0
"""How often the server looks what a client has taken since the last time."""

SMALL_BYTES = 256 * 1024
"""If at most 256 KiB are left, a slow client gets more time.

Then it is cut off only if it takes nothing in a window, or after MAX_SECONDS more.
"""

MAX_SECONDS = 15 * 60.0


class Pace:
    """Tells whether a client takes what it gets fast enough."""

    __slots__ = ("_ends", "_left")

    def __init__(self, left: int) -> None:
        """``left``: how many bytes the client has yet to take."""
        self._left, self._ends = left, time.monotonic() + MAX_SECONDS

    def keeps_up(self, left: int) -> bool:
        """Tell whether a client that has yet to take ``left`` bytes has taken enough. Call it after each window."""
        before, self._left = self._left, left
        if left <= SMALL_BYTES:
            return before > left and time.monotonic() <= self._ends
        self._ends = time.monotonic() + MAX_SECONDS
        return before - left >= MIN_RATE * WINDOW_SECONDS
