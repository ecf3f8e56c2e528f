"""What a measurement says."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A row of the table; ``verdict`` says whether the target, if there is one, was met."""

    what: str
    measured: str
    target: str = ""
    verdict: str = ""


def spread(what: str, values: Sequence[float], unit: str, most: float | None = None) -> Figure:
    """Show median, least and most; the target ``most`` is one for the median."""
    median = statistics.median(values)
    shown = f"{_number(median)} {unit} ({_number(min(values))} - {_number(max(values))})"
    return _judged(what, shown, median, unit, most)


def single(what: str, value: float, unit: str, most: float | None = None) -> Figure:
    return _judged(what, f"{_number(value)} {unit}", value, unit, most)


def at_least(what: str, value: float, unit: str, least: float) -> Figure:
    return Figure(
        what, f"{_number(value)} {unit}", f">= {_number(least)} {unit}", "met" if value >= least else "MISSED"
    )


def ratio(what: str, one: Sequence[float], other: Sequence[float]) -> Figure:
    """How many times the median of ``other`` goes into that of ``one``."""
    return Figure(what, f"{_number(statistics.median(one) / statistics.median(other))} times")


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that ``share`` of all values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def latencies(what: str, seconds: Sequence[float]) -> Figure:
    p50, p95, p99, worst = (percentile(seconds, share) * 1000 for share in (0.5, 0.95, 0.99, 1))
    shown = " / ".join(_number(each) for each in (p50, p95, p99, worst))
    return Figure(f"{what}: p50 / p95 / p99 / worst of {len(seconds)}", f"{shown} ms")


def _judged(what: str, shown: str, value: float, unit: str, most: float | None) -> Figure:
    if most is None:
        return Figure(what, shown)
    return Figure(what, shown, f"<= {_number(most)} {unit}", "met" if value <= most else "MISSED")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
