"""What a measurement says."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Figure:
    """A row of the table; ``verdict`` says whether the target, if there is one, was met.

    ``values``: what a program reads instead of ``measured``, by name, in ``unit``.
    """

    what: str
    measured: str
    target: str = ""
    verdict: str = ""
    values: dict[str, float] = field(default_factory=dict)
    unit: str = ""


def spread(what: str, values: Sequence[float], unit: str, most: float | None = None) -> Figure:
    """Show median, least and most; the target ``most`` is one for the median."""
    found = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    shown = f"{number(found['median'])} {unit} ({number(found['least'])} - {number(found['most'])})"
    return _judged(what, shown, found, unit, most)


def single(what: str, value: float, unit: str, most: float | None = None) -> Figure:
    return _judged(what, f"{number(value)} {unit}", {"value": value}, unit, most)


def at_least(what: str, value: float, unit: str, least: float) -> Figure:
    verdict = "met" if value >= least else "MISSED"
    return Figure(what, f"{number(value)} {unit}", f">= {number(least)} {unit}", verdict, {"value": value}, unit)


def ratio(what: str, one: Sequence[float], other: Sequence[float]) -> Figure:
    """How many times the median of ``other`` goes into that of ``one``."""
    return single(what, statistics.median(one) / statistics.median(other), "times")


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that ``share`` of all values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def latencies(what: str, seconds: Sequence[float]) -> Figure:
    ordered = sorted(seconds)
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "worst": 1}
    found = {name: percentile(ordered, share) * 1000 for name, share in shares.items()}
    shown = " / ".join(number(each) for each in found.values())
    measured = f"{shown} ms, of {len(seconds):,}"
    return Figure(f"{what}: p50 / p95 / p99 / worst", measured, values=found | {"of": len(seconds)}, unit="ms")


def _judged(what: str, shown: str, values: dict[str, float], unit: str, most: float | None) -> Figure:
    if most is None:
        return Figure(what, shown, values=values, unit=unit)
    verdict = "met" if next(iter(values.values())) <= most else "MISSED"
    return Figure(what, shown, f"<= {number(most)} {unit}", verdict, values, unit)


def number(value: float) -> str:
    """Three digits, or all of a whole or large number."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
