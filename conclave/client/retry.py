"""Decides whether a request is repeated, and computes the delays between attempts."""

import time
from dataclasses import dataclass

from conclave.client.errors import BusyError, ClientError, NoAnswerError, RefusedError

MAX_REPEAT_SECONDS = 23 * 3_600.0
"""How long a request is repeated, including suspended time. The server remembers a send id for a day."""

GATEWAY_STATUSES = (502, 503, 504)
"""Statuses of a proxy that does not reach the server. They are treated like a missing answer."""


def seconds_since_boot() -> float:
    """Return monotonic seconds, including time while the machine is suspended where the system supports it."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff with jitter, so that many clients do not return at once."""

    first: float = 0.25
    """Maximum delay in seconds after the first failure; doubled after each, up to ``most``."""
    most: float = 30.0
    tries: int = 8
    """Maximum number of times that a request is sent."""
    max_wait: float = 60.0
    """If a busy server asks for a longer wait, in seconds, the request fails."""

    def delay(self, failures: int, chance: float) -> float:
        """Return the seconds to wait. ``failures``: consecutive ones, at least 1. ``chance``: 0 to 1."""
        max_delay = min(self.most, self.first * 2.0 ** min(failures - 1, 32))
        return max_delay * (0.5 + chance / 2)

    def wait_after(self, error: ClientError, failures: int, chance: float, *, repeatable: bool) -> float | None:
        """Return the seconds to wait before a request is sent again; None: do not repeat it.

        ``repeatable``: executing it twice is harmless. Other requests are repeated only if the server did nothing.
        """
        if failures >= self.tries:
            return None
        wait = self.delay(failures, chance)
        if isinstance(error, BusyError):
            wait = max(wait, error.retry_after or 0.0)
            return wait if wait <= self.max_wait else None
        is_answer_lost = isinstance(error, NoAnswerError) or (
            isinstance(error, RefusedError) and error.status in GATEWAY_STATUSES
        )
        return wait if is_answer_lost and repeatable else None
