"""Counters and histograms of the server's work. ``admin.metrics`` exports them.

Only the event loop's thread records. Any thread may read; the count and the sum of a histogram may then differ by one
value. Recording takes about half a microsecond.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The default bounds: from half a millisecond to 10 seconds."""

COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)

CLIENT_CLOSED = 499
"""The status of a request whose client closed the connection before the response."""

OTHER_METHOD = "other"
"""The label for all methods that HTTP does not define, since clients may send any word."""

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"))


class Histogram:
    """Counts of values by upper bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        """``bounds``: ascending, inclusive. ``counts`` has one more element, for values above the last bound."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def record(self, value: float) -> None:
        """Add a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


def merge_histograms(histograms: Iterable[Histogram]) -> Histogram:
    """Return the sum of histograms that have the default bounds."""
    merged_histogram = Histogram()
    for each in histograms:
        merged_histogram.counts = [one + other for one, other in zip(merged_histogram.counts, each.counts, strict=True)]
        merged_histogram.total += each.total
    return merged_histogram


class Requests:
    """The durations of answered requests by method, route and status."""

    def __init__(self) -> None:
        """Start empty."""
        self._histograms: dict[tuple[str, str, int], Histogram] = {}

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        """Add a request. ``route``: as in the log, never a path."""
        found = self._histograms.get((method, route, status))
        if found is None:
            found = self._new(method, route, status)
        found.record(seconds)

    def histograms(self) -> dict[tuple[str, str, int], Histogram]:
        """Return the histogram of each method, route and status."""
        return dict(self._histograms)

    def _new(self, method: str, route: str, status: int) -> Histogram:
        label = method if method in METHODS else OTHER_METHOD
        return self._histograms.setdefault((label, route, status), Histogram())


class Writes:
    """The transactions of the writer.

    ``outcomes``: counts by outcome, ``ok`` or ``failed``. ``sizes``: writes per transaction. ``lock_waits``: seconds of
    waiting for the write lock. ``commits``: seconds of each commit.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.outcomes: Counter[str] = Counter(ok=0, failed=0)
        self.sizes = Histogram(COUNTS)
        self.lock_waits = Histogram()
        self.commits = Histogram()

    def record(self, count: int, lock_seconds: float, commit_seconds: float | None) -> None:
        """Add a transaction of ``count`` writes. ``commit_seconds``: None if it was not committed."""
        self.sizes.record(count)
        self.lock_waits.record(lock_seconds)
        if commit_seconds is None:
            self.outcomes["failed"] += 1
        else:
            self.outcomes["ok"] += 1
            self.commits.record(commit_seconds)
