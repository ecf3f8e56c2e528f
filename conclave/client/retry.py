"""How often a request is repeated, for how long, and how long is waited before."""

import time
from dataclasses import dataclass

from conclave.client.errors import BusyError, ClientError, NoAnswerError, RefusedError

MAX_REPEAT_SECONDS = 23 * 3_600.0
"""A request is repeated for 23 hours at most, of which a machine may sleep most: a server knows a send for a day."""

GATEWAY_STATUSES = (502, 503, 504)
"""Answers of a proxy that has lost the server: as if there were no answer."""


def seconds_since_boot() -> float:
    """Return seconds that only go forward, where the system can tell also while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True)
class Backoff:
    """Waits longer after each failure, by chance, so that many clients do not come back at once."""

    first: float = 0.25
    """Up to so many seconds after the first failure, twice as many after the next, ``most`` at last."""
    most: float = 30.0
    tries: int = 8
    """How often a request is sent at most."""
    max_wait: float = 60.0
    """A server that asks to come back after more seconds than these is not waited for."""

    def delay(self, failures: int, chance: float) -> float:
        """Return how many seconds to wait. ``failures``: in a row, at least 1. ``chance``: 0 to 1."""
        longest = min(self.most, self.first * 2.0 ** min(failures - 1, 32))
        return longest * (0.5 + chance / 2)

    def wait_after(self, error: ClientError, failures: int, chance: float, *, repeatable: bool) -> float | None:
        """Return how many seconds to wait before a request is sent again; None: it is not.

        ``repeatable``: it does no harm if the server does twice what it asks for. Otherwise it is sent again only if
        the server says that it has done nothing.
        """
        if failures >= self.tries:
            return None
        wait = self.delay(failures, chance)
        if isinstance(error, BusyError):
            wait = max(wait, error.retry_after or 0.0)
            return wait if wait <= self.max_wait else None
        lost = isinstance(error, NoAnswerError) or (
            isinstance(error, RefusedError) and error.status in GATEWAY_STATUSES
        )
        return wait if lost and repeatable else None
