"""Advises how often to clean up: what runs have cost, and what they would cost at other intervals. Pure.

A run is taken to cost a fixed part, which one with little to erase shows, and a part for each row that it erases. How
much expires in a day does not depend on how often it is erased, so only the fixed part does. It is what runs erase in a
day on average; what they have erased in less than a day counts as a day's.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from conclave.retention.durations import duration_text

DAY = 86_400

INTERVALS = (60, 600, 3600, DAY)
"""The intervals that are compared with the one in force: a minute, ten minutes, an hour, a day."""

MOST_SHARE = 0.01
"""Runs are cheap if they take at most a hundredth of a core, and hold the write lock for a hundredth of the time."""

MOST_BUSY = 0.1
"""And if they last for a tenth of the interval at most: others may need the run lock, such as a backup."""

LEAST_RUNS = 2


@dataclass(frozen=True)
class Cost:
    """What one run that went well has cost. Times are Unix seconds, ``rows`` what it has deleted.

    ``cpu``: CPU seconds. ``lock``: for how many seconds it held the write lock in all. ``longest_lock``: at the
    longest, which a send may have waited.
    """

    began: int
    ended: int
    rows: int
    cpu: float = 0.0
    lock: float = 0.0
    longest_lock: float = 0.0


@dataclass(frozen=True)
class Projection:
    """What an interval means. ``lies``: for how many seconds expired messages lie on the disk at most.

    ``waiting``: how many of them do on average. ``runs``, ``cpu`` and ``lock``: in a day, the last two in seconds.
    """

    interval: int
    is_current: bool
    lies: int
    waiting: float
    runs: float
    cpu: float
    lock: float


@dataclass(frozen=True)
class Advice:
    """What to do about the interval of one job, in a sentence, and why.

    ``setting``: what to set, as a configuration names it. ``runs``: from how many runs this is known. ``cpu``, ``lock``
    and ``seconds``: of a run, the median. ``longest_lock``: of all of them.
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
    """Advise on the ``interval`` of a job, by what its runs have cost, in any order."""
    ordered = sorted(costs, key=lambda each: each.began)
    span = ordered[-1].began - ordered[0].began if ordered else 0
    if len(ordered) < LEAST_RUNS or span <= 0:
        return Advice(job, setting, f"No advice on {setting} yet: it takes {LEAST_RUNS} runs that went well.")
    # Runs of a few hours may have erased what had gathered for weeks. So no day is taken to bring more than they did.
    daily = sum(each.rows for each in ordered[1:]) * DAY / max(span, DAY)
    seconds = statistics.median(max(0, each.ended - each.began) for each in ordered)
    projections = [
        Projection(
            each,
            each == interval,
            round(each + seconds),
            daily * (each / 2 + seconds) / DAY,
            DAY / each,
            _in_a_day([(one.rows, one.cpu) for one in ordered], daily, each),
            _in_a_day([(one.rows, one.lock) for one in ordered], daily, each),
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


def _in_a_day(known: Sequence[tuple[int, float]], daily: float, interval: int) -> float:
    """Return what a day costs at an interval. ``known``: the rows and the cost of each run."""
    told = sorted(known)
    idle = told[: max(1, len(told) // 4)]
    fixed = statistics.median(cost for _, cost in idle)
    rows = sum(rows for rows, _ in told)
    a_row = max(0.0, sum(cost for _, cost in told) - fixed * len(told)) / rows if rows else 0.0
    return fixed * DAY / interval + a_row * daily


def _is_cheap(one: Projection, seconds: float) -> bool:
    return max(one.cpu, one.lock) <= MOST_SHARE * DAY and seconds * one.runs <= MOST_BUSY * DAY


def _sentence(setting: str, projections: Sequence[Projection], seconds: float, daily: float) -> str:
    [current] = [each for each in projections if each.is_current]
    now = duration_text(current.interval)
    cheap = [each for each in projections if _is_cheap(each, seconds)]
    best = cheap[0] if cheap else projections[-1]
    if best.interval >= current.interval and _is_cheap(current, seconds):
        best = current
    if not daily and _is_cheap(current, seconds):
        return f"Keep {setting} at {now}: nothing has expired lately, so another interval would change nothing."
    if best.is_current:
        why = "runs are cheap" if cheap else "runs are expensive at every interval: see why they take so long"
        shorter = "" if current.interval <= INTERVALS[0] or not cheap else ", and would not be at a shorter interval"
        return f"Keep {setting} at {now}: {why}{shorter}."
    lies = f"expired messages then lie on the disk for {rounded(best.lies)} at most, not {rounded(current.lies)}"
    wanted = f'Set {setting} to "{duration_text(best.interval)}"'
    if best.interval < current.interval:
        return f"{wanted}: {lies}, for {_more(best, current)} more a day."
    return f"{wanted}: runs are too expensive for every {now}; {lies}, for {_more(current, best)} less a day."


def _more(one: Projection, other: Projection) -> str:
    """Write what ``one`` costs more than ``other`` in a day."""
    return f"{span_text(max(0.0, one.cpu - other.cpu))} of CPU"


def rounded(seconds: int) -> str:
    """Write seconds in the greatest unit that is a twentieth off at most."""
    for unit in (DAY, 3600, 60):
        near = round(seconds / unit) * unit
        if near and abs(near - seconds) <= near / 20:
            return duration_text(near)
    return duration_text(max(1, seconds))


def span_text(seconds: float) -> str:
    """Write how long something takes in a day: 9 ms, 1.5 s, 3 min, 2.5 h."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
