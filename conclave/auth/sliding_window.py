"""Rate limits by key, in bounded memory."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable
from math import ceil

MAX_TIMESTAMPS = 100_000
"""The most timestamps in one window, over all keys.

They take about 20 MB with ids as keys, and 65 MB with the longest usernames.
"""

MAX_KEYS = 100_000
"""The most keys in one LeakyBucket: about 20 MB."""

EPSILON_SECONDS = 1e-6
"""Shorter waits count as 0, since sums of floats are inexact."""

MAX_HANDOUTS = 10
"""The most key packages of one user that are handed out in HANDOUT_SECONDS."""

HANDOUT_SECONDS = 60


class SlidingWindow:
    """Allows each key ``limit`` events in any period of ``seconds``.

    Times are whole seconds of the monotonic clock, ``Reading.since_boot``; a time before the latest one counts as the
    latest. Keys have to be short, since only the number of timestamps is bounded. Beyond ``capacity`` timestamps, which
    is at least ``limit``, the keys with the oldest last event are dropped. For one thread only.
    """

    def __init__(self, limit: int, seconds: int, capacity: int = MAX_TIMESTAMPS) -> None:
        """Start empty."""
        self.limit = limit
        self.seconds = seconds
        self._capacity = capacity
        self._timestamps: OrderedDict[Hashable, list[int]] = OrderedDict()
        """The timestamps of each key in the window, ascending. Keys are in order of their last event."""
        self._size = 0
        self._now = 0

    def __len__(self) -> int:
        """Return the number of stored keys."""
        return len(self._timestamps)

    def count(self, key: Hashable, now: int) -> int:
        """Return the number of events of ``key`` in the window that ends at ``now``; at most ``limit``."""
        return len(self._recent(key, now))

    def wait(self, key: Hashable, now: int, amount: int = 1) -> int:
        """Return the seconds until ``key`` is allowed ``amount`` more events; 0 means now. Records nothing.

        Raises ValueError unless ``amount`` is 1 to ``limit``.
        """
        if not 1 <= amount <= self.limit:
            raise ValueError(f"{amount} is not between 1 and {self.limit}")
        timestamps = self._recent(key, now)
        excess = len(timestamps) + amount - self.limit
        return timestamps[excess - 1] + self.seconds - self._now if excess > 0 else 0

    def record(self, key: Hashable, now: int, amount: int = 1) -> None:
        """Record ``amount`` events of ``key``. Only the latest ``limit`` are kept."""
        recent = self._recent(key, now)
        timestamps = (recent + [self._now] * min(amount, self.limit))[-self.limit :]
        self._size += len(timestamps) - len(recent)
        self._timestamps[key] = timestamps
        self._timestamps.move_to_end(key)
        while self._size > self._capacity:
            self._drop_oldest()

    def clear(self, key: Hashable) -> None:
        """Delete the events of ``key``."""
        self._size -= len(self._timestamps.pop(key, ()))

    def clear_all(self, matches: Callable[[Hashable], bool]) -> None:
        """Delete every key for which ``matches`` is true. It scans all keys."""
        for key in [each for each in self._timestamps if matches(each)]:
            self.clear(key)

    def _recent(self, key: Hashable, now: int) -> list[int]:
        """Delete expired keys and timestamps; return the remaining timestamps of ``key``."""
        self._now = max(self._now, now)
        window_start = self._now - self.seconds
        while self._timestamps and next(iter(self._timestamps.values()))[-1] <= window_start:
            self._drop_oldest()
        timestamps = self._timestamps.get(key, [])
        expired_count = bisect_right(timestamps, window_start)
        del timestamps[:expired_count]
        self._size -= expired_count
        return timestamps

    def _drop_oldest(self) -> None:
        self._size -= len(self._timestamps.popitem(last=False)[1])


class LeakyBucket:
    """Allows each key a burst of ``limit`` events, and then an even rate of ``limit`` in ``seconds``.

    So any period of ``seconds`` has fewer than twice ``limit`` events. It stores one number for each of at most
    MAX_KEYS keys; those with the oldest last event are dropped. Times are as in SlidingWindow. For one thread at a
    time.
    """

    def __init__(self, limit: int, seconds: int) -> None:
        """Start empty."""
        self._interval = seconds / limit
        self._seconds = seconds
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()
        """The time at which each key's bucket is empty again."""

    def __len__(self) -> int:
        """Return the number of stored keys."""
        return len(self._full_at)

    def wait(self, key: Hashable, now: int, amount: int = 1) -> int:
        """Return the whole seconds until ``key`` is allowed ``amount`` more events; 0 means now. Records nothing."""
        excess = max(self._full_at.get(key, 0.0), now) + amount * self._interval - now - self._seconds
        return max(1, ceil(excess)) if excess > EPSILON_SECONDS else 0

    def record(self, key: Hashable, now: int, amount: int = 1) -> None:
        """Record ``amount`` events of ``key``."""
        self._full_at[key] = max(self._full_at.get(key, 0.0), now) + amount * self._interval
        self._full_at.move_to_end(key)
        if len(self._full_at) > MAX_KEYS:
            self._full_at.popitem(last=False)
