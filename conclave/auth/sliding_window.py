"""Counts by key how often something happened lately, in bounded memory."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable
from math import ceil

MAX_MOMENTS = 100_000
"""At most 100,000 moments in one window, over all keys.

That is about 20 MB with ids as keys, and 65 MB with the longest usernames.
"""

MAX_KEYS = 100_000
"""At most 100,000 users or groups are counted in one Pace: about 20 MB."""

EPSILON_SECONDS = 1e-6
"""A wait of less than a microsecond is none: sums of fractions are not exact."""

MAX_HANDOUTS = 10
"""At most 10 key packages of one user are handed out in HANDOUT_SECONDS."""

HANDOUT_SECONDS = 60


class SlidingWindow:
    """Allows each key ``limit`` times in any ``seconds``.

    Times are whole seconds of the monotonic clock, ``Reading.since_boot``. If a time is earlier than one given
    before, the later one counts. Keys have to be short, since only the number of moments is bounded. Beyond
    ``capacity`` moments, the keys that were recorded the longest ago are forgotten; ``capacity`` is at least ``limit``.
    For one thread only.
    """

    def __init__(self, limit: int, seconds: int, capacity: int = MAX_MOMENTS) -> None:
        """Begin with nothing recorded."""
        self.limit = limit
        self.seconds = seconds
        self._capacity = capacity
        self._moments: OrderedDict[Hashable, list[int]] = OrderedDict()
        """The moments of each key that count, ascending. Keys are in the order of their last moment."""
        self._size = 0
        self._now = 0

    def __len__(self) -> int:
        """Return how many keys are remembered."""
        return len(self._moments)

    def count(self, key: Hashable, now: int) -> int:
        """Return how often ``key`` was recorded in the window that ends at ``now``; at most ``limit``."""
        return len(self._recent(key, now))

    def wait(self, key: Hashable, now: int, amount: int = 1) -> int:
        """Return the seconds until ``key`` is allowed ``amount`` more times; 0 means now. Records nothing.

        Raises ValueError for less than 1, and for more than ``limit``, which is never allowed.
        """
        if not 1 <= amount <= self.limit:
            raise ValueError(f"{amount} is not between 1 and {self.limit}")
        moments = self._recent(key, now)
        over = len(moments) + amount - self.limit
        return moments[over - 1] + self.seconds - self._now if over > 0 else 0

    def record(self, key: Hashable, now: int, amount: int = 1) -> None:
        """Note that ``key`` happened ``amount`` times. Only the latest ``limit`` are kept: others decide nothing."""
        before = self._recent(key, now)
        moments = (before + [self._now] * min(amount, self.limit))[-self.limit :]
        self._size += len(moments) - len(before)
        self._moments[key] = moments
        self._moments.move_to_end(key)
        while self._size > self._capacity:
            self._forget_oldest()

    def clear(self, key: Hashable) -> None:
        """Forget what was recorded of ``key``."""
        self._size -= len(self._moments.pop(key, ()))

    def clear_all(self, matches: Callable[[Hashable], bool]) -> None:
        """Forget every key that ``matches``. It looks at all keys."""
        for key in [each for each in self._moments if matches(each)]:
            self.clear(key)

    def _recent(self, key: Hashable, now: int) -> list[int]:
        """Forget the keys, and the moments of ``key``, whose window has passed; return the moments of ``key`` left."""
        self._now = max(self._now, now)
        passed = self._now - self.seconds
        while self._moments and next(iter(self._moments.values()))[-1] <= passed:
            self._forget_oldest()
        moments = self._moments.get(key, [])
        gone = bisect_right(moments, passed)
        del moments[:gone]
        self._size -= gone
        return moments

    def _forget_oldest(self) -> None:
        self._size -= len(self._moments.popitem(last=False)[1])


class LeakyBucket:
    """Allows each key ``limit`` times at once, and evenly ``limit`` times in ``seconds`` after that.

    So any ``seconds`` have less than twice ``limit``. It keeps one number for each key, of at most MAX_KEYS; the keys
    that were recorded the longest ago are forgotten first. Times are as in SlidingWindow. For one thread at a time.
    """

    def __init__(self, limit: int, seconds: int) -> None:
        """Begin with nothing recorded."""
        self._interval = seconds / limit
        self._seconds = seconds
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()
        """When each key will have been used for so long that nothing of it counts."""

    def __len__(self) -> int:
        """Return how many keys are remembered."""
        return len(self._full_at)

    def wait(self, key: Hashable, now: int, amount: int = 1) -> int:
        """Return the whole seconds until ``key`` is allowed ``amount`` more times; 0 means now. Records nothing."""
        over = max(self._full_at.get(key, 0.0), now) + amount * self._interval - now - self._seconds
        return max(1, ceil(over)) if over > EPSILON_SECONDS else 0

    def record(self, key: Hashable, now: int, amount: int = 1) -> None:
        """Note that ``key`` happened ``amount`` times."""
        self._full_at[key] = max(self._full_at.get(key, 0.0), now) + amount * self._interval
        self._full_at.move_to_end(key)
        if len(self._full_at) > MAX_KEYS:
            self._full_at.popitem(last=False)
