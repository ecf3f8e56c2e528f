"""Measures how many messages are sent in a second, over the last minute."""

import time
from collections import deque

from conclave.measures import Requests

EVERY_SECONDS = 5.0
"""The count is taken every 5 seconds."""

WINDOW_SECONDS = 60.0

SENDS = "/api/v1/groups/{group_id}/messages"
"""The route of sends, as the log has it."""


class SendRate:
    """How many messages are sent: ``rate`` by the second."""

    def __init__(self, requests: Requests) -> None:
        """``requests``: what the server has answered."""
        self._requests = requests
        self._counts: deque[tuple[float, int]] = deque(maxlen=int(WINDOW_SECONDS / EVERY_SECONDS) + 1)

    async def note(self) -> None:
        """Take the count. It is to be called every EVERY_SECONDS, the first time at the start."""
        self._counts.append((time.monotonic(), self._count()))

    @property
    def rate(self) -> float:
        """Messages a second, over the last minute or since the start if that is less."""
        began, before = self._counts[0] if self._counts else (time.monotonic(), self._count())
        return (self._count() - before) / max(1.0, time.monotonic() - began)

    def _count(self) -> int:
        """Return how many sends have succeeded so far."""
        return sum(
            sum(each.counts)
            for (method, route, status), each in self._requests.taken().items()
            if (method, route) == ("POST", SENDS) and status < 300
        )
