"""Decides when a client is too slow, so that its connection is aborted."""

import time

MIN_RATE = 16 * 1024
"""The lowest average rate in a window, bytes a second."""

WINDOW_SECONDS = 60.0
"""The length of a window, in which the progress of a client is measured."""

SMALL_BYTES = 256 * 1024
"""With at most 256 KiB left, a client is too slow only if it reads nothing in a window, or after MAX_SECONDS."""

MAX_SECONDS = 15 * 60.0


class Pace:
    """Checks whether a client reads fast enough."""

    __slots__ = ("_ends", "_left")

    def __init__(self, left: int) -> None:
        """``left``: the number of bytes that the client has not read."""
        self._left, self._ends = left, time.monotonic() + MAX_SECONDS

    def keeps_up(self, left: int) -> bool:
        """Return whether the client is fast enough, with ``left`` bytes to go. Call it after each window."""
        before, self._left = self._left, left
        if left <= SMALL_BYTES:
            return before > left and time.monotonic() <= self._ends
        self._ends = time.monotonic() + MAX_SECONDS
        return before - left >= MIN_RATE * WINDOW_SECONDS
