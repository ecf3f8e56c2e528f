"""Recommends a cleanup interval from the costs of past runs. Pure functions.

The model: a run has a fixed cost, estimated from runs with few rows, and a cost for each row that it erases. How many
rows expire in a day does not depend on the interval, so a shorter interval only adds fixed costs. The rows of a day are
the average of past runs; a history shorter than a day counts as a day.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from conclave.retention.durations import duration_text

DAY = 86_400

INTERVALS = (60, 600, 3600, DAY)
"""The intervals to compare with the configured one: a minute, ten minutes, an hour, a day."""

MAX_SHARE = 0.01
"""Runs are cheap if they use at most 1% of a core, and hold the write lock for at most 1% of the time."""

MAX_BUSY_SHARE = 0.1
"""Cheap runs take at most a tenth of the interval, since a backup may need the run lock."""

MIN_RUNS = 2


@dataclass(frozen=True)
class Cost:
    """The costs of one successful run. Times are Unix seconds.

    ``rows``: how many it deleted. ``cpu``: CPU seconds. ``lock``: seconds for which it held the write lock in total.
    ``longest_lock``: the longest single hold, for which a send may have waited.
    """

    began: int
    ended: int
    rows: int
    cpu: float = 0.0
    lock: float = 0.0
    longest_lock: float = 0.0


@dataclass(frozen=True)
class Projection:
    """The costs of an interval.

    ``max_delay``: the most seconds that an expired message stays on disk. ``waiting``: the average number of expired
    messages on disk. ``runs``, ``cpu`` and ``lock``: per day, the last two in seconds.
    """

    interval: int
    is_current: bool
    max_delay: int
    waiting: float
    runs: float
    cpu: float
    lock: float


@dataclass(frozen=True)
class Advice:
    """A recommendation for the interval of one job, as a sentence, and the numbers behind it.

    ``setting``: the name of the interval in the configuration. ``runs``: how many runs were evaluated. ``cpu``,
    ``lock`` and ``seconds``: the median of a run. ``longest_lock``: the maximum of all runs.
    """

    job: str
    setting: str
    sentence: str
    runs: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    lock: float = 0.0
    longest_lock: float = 0.0
    projections: Sequence[Projection] = ()


def advise(job: str, setting: str, costs: Sequence[Cost], interval: int) -> Advice:
    """Return a recommendation for the ``interval`` of a job, from the costs of its runs, in any order."""
    ordered = sorted(costs, key=lambda each: each.began)
    span = ordered[-1].began - ordered[0].began if ordered else 0
    if len(ordered) < MIN_RUNS or span <= 0:
        return Advice(job, setting, f"No advice on {setting} yet: it needs {MIN_RUNS} successful runs.")
    # The first runs may have erased the backlog of weeks, so a few hours of history are not extrapolated to a day.
    daily = sum(each.rows for each in ordered[1:]) * DAY / max(span, DAY)
    seconds = statistics.median(max(0, each.ended - each.began) for each in ordered)
    projections = [
        Projection(
            each,
            each == interval,
            round(each + seconds),
            daily * (each / 2 + seconds) / DAY,
            DAY / each,
            _daily_cost([(cost.rows, cost.cpu) for cost in ordered], daily, each),
            _daily_cost([(cost.rows, cost.lock) for cost in ordered], daily, each),
        )
        for each in sorted({*INTERVALS, interval})
    ]
    return Advice(
        job,
        setting,
        _sentence(setting, projections, seconds, daily),
        len(ordered),
        seconds,
        statistics.median(each.cpu for each in ordered),
        statistics.median(each.lock for each in ordered),
        max(each.longest_lock for each in ordered),
        projections,
    )


def _daily_cost(runs: Sequence[tuple[int, float]], daily_rows: float, interval: int) -> float:
    """Return the cost of a day at an interval. ``runs``: the rows and the cost of each run."""
    by_rows = sorted(runs)
    idle = by_rows[: max(1, len(by_rows) // 4)]
    fixed = statistics.median(cost for _, cost in idle)
    rows = sum(rows for rows, _ in by_rows)
    per_row = max(0.0, sum(cost for _, cost in by_rows) - fixed * len(by_rows)) / rows if rows else 0.0
    return fixed * DAY / interval + per_row * daily_rows


def _is_cheap(projection: Projection, seconds: float) -> bool:
    costs = max(projection.cpu, projection.lock)
    return costs <= MAX_SHARE * DAY and seconds * projection.runs <= MAX_BUSY_SHARE * DAY


def _sentence(setting: str, projections: Sequence[Projection], seconds: float, daily: float) -> str:
    [current] = [each for each in projections if each.is_current]
    now = duration_text(current.interval)
    cheap = [each for each in projections if _is_cheap(each, seconds)]
    best = cheap[0] if cheap else projections[-1]
    if best.interval >= current.interval and _is_cheap(current, seconds):
        best = current
    if not daily and _is_cheap(current, seconds):
        return f"Keep {setting} at {now}: nothing expired recently, so the interval makes no difference."
    if best.is_current:
        why = "runs are cheap" if cheap else "runs are expensive at every interval: see why they take so long"
        shorter = "" if current.interval <= INTERVALS[0] or not cheap else ", and would not be at a shorter interval"
        return f"Keep {setting} at {now}: {why}{shorter}."
    delay = (
        f"expired messages then stay on disk for at most {rounded_text(best.max_delay)} instead of"
        f" {rounded_text(current.max_delay)}"
    )
    change = f'Set {setting} to "{duration_text(best.interval)}"'
    if best.interval < current.interval:
        return f"{change}: {delay}, for {_extra_cpu(best, current)} more a day."
    return f"{change}: runs are too expensive for every {now}; {delay}, for {_extra_cpu(current, best)} less a day."


def _extra_cpu(one: Projection, other: Projection) -> str:
    """Return how much more CPU time ``one`` takes in a day than ``other``, as text."""
    return f"{elapsed_text(max(0.0, one.cpu - other.cpu))} of CPU"


def rounded_text(seconds: int) -> str:
    """Format a duration in the greatest unit that is at most 5% off."""
    for unit in (DAY, 3600, 60):
        rounded = round(seconds / unit) * unit
        if rounded and abs(rounded - seconds) <= rounded / 20:
            return duration_text(rounded)
    return duration_text(max(1, seconds))


def elapsed_text(seconds: float) -> str:
    """Format a measured time: 9 ms, 1.5 s, 3 min, 2.5 h."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
