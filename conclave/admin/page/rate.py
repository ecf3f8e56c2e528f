"""Measures the rate of sent messages over the last minute."""

import time
from collections import deque

from conclave.measures import Requests

EVERY_SECONDS = 5.0
"""The interval of samples."""

WINDOW_SECONDS = 60.0

SENDS = "/api/v1/groups/{group_id}/messages"
"""The route of sends, as in the log."""


class SendRate:
    """The rate of sent messages."""

    def __init__(self, requests: Requests) -> None:
        """``requests``: the counts of answered requests."""
        self._requests = requests
        self._counts: deque[tuple[float, int]] = deque(maxlen=int(WINDOW_SECONDS / EVERY_SECONDS) + 1)

    async def sample(self) -> None:
        """Take a sample. Call it every EVERY_SECONDS, first at the start."""
        self._counts.append((time.monotonic(), self._count()))

    @property
    def rate(self) -> float:
        """Messages per second over the last minute, or since the start if that was less than a minute ago."""
        start, first_count = self._counts[0] if self._counts else (time.monotonic(), self._count())
        return (self._count() - first_count) / max(1.0, time.monotonic() - start)

    def _count(self) -> int:
        """Return the number of successful sends so far."""
        return sum(
            sum(each.counts)
            for (method, route, status), each in self._requests.histograms().items()
            if (method, route) == ("POST", SENDS) and status < 300
        )
