"""Calculates the stacked bar charts of the operators' page, which the template draws."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from conclave.logs.lines import second

WIDTH, HEIGHT, TOP = 720, 190, 16
"""The size of a chart in its own units. It is scaled to the width of the page."""

LEFT, BOTTOM = 72, 26
"""The space for the labels of the axes."""

MAX_BARS = 48

STEPS = (60, 300, 900, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)
"""The possible time spans of a bar, in seconds."""


class DataPoint(NamedTuple):
    """The amounts of each kind at the Unix second ``at``."""

    at: int
    kinds: Mapping[str, int]


@dataclass(frozen=True)
class BarSegment:
    """A segment of a stacked bar."""

    place: int
    """The index of its kind."""
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Bar:
    """A bar, and its text for a tooltip."""

    pieces: Sequence[BarSegment]
    text: str


class AxisLabel(NamedTuple):
    """A label of an axis, and its position."""

    at: float
    text: str


@dataclass(frozen=True)
class Chart:
    """A chart of stacked bars over time."""

    bars: Sequence[Bar]
    totals: Mapping[str, int]
    """The sums by kind."""
    heights: Sequence[AxisLabel]
    times: Sequence[AxisLabel]
    step: int
    text: str
    """A description of the chart for screen readers."""


def stacked_chart(amounts: Iterable[DataPoint], kinds: Sequence[str], now: int) -> Chart | None:
    """Calculate a chart of ``kinds`` until the Unix second ``now``; None if there is no data yet."""
    points = [each for each in amounts if each.at <= now]
    if not points:
        return None
    first = min(each.at for each in points)
    step = next((step for step in STEPS if (now - first) // step + 2 <= MAX_BARS), STEPS[-1])
    begin = first - first % step
    count = min((now - begin) // step + 1, MAX_BARS)
    begin = max(begin, now - now % step - (count - 1) * step)
    sums: list[Counter[str]] = [Counter() for _ in range(count)]
    for each in points:
        if each.at >= begin:
            sums[(each.at - begin) // step].update(each.kinds)
    top = _round_up(max(sum(each[kind] for kind in kinds) for each in sums))
    bars = [
        _bar(place, begin + place * step, each, kinds, count, top) for place, each in enumerate(sums) if each.total()
    ]
    totals = {kind: sum(each[kind] for each in sums) for kind in kinds}
    times = [
        AxisLabel(_x(place, count), second(begin + place * step)[5:16])
        for place in _label_positions(begin, step, count)
    ]
    heights = [AxisLabel(_y(value, top), _short(value)) for value in sorted({0, top // 2, top})]
    summary = _describe(totals, kinds) or "nothing"
    text = f"From {second(begin)} to {second(now)} UTC: {summary}."
    return Chart(bars, totals, heights, times, step, text)


def _bar(place: int, at: int, amount: Counter[str], kinds: Sequence[str], count: int, top: int) -> Bar:
    pieces, below = [], 0
    width = (WIDTH - LEFT) / count
    for number, kind in enumerate(kinds):
        if amount[kind]:
            y = _y(below + amount[kind], top)
            pieces.append(BarSegment(number, _x(place, count), y, max(1.0, width * 0.85), _y(below, top) - y))
            below += amount[kind]
    return Bar(pieces, f"{second(at)} UTC: {_describe(amount, kinds)}")


def _describe(amount: Mapping[str, int], kinds: Sequence[str]) -> str:
    return ", ".join(f"{amount[kind]:,} {kind.replace('_', ' ')}" for kind in kinds if amount[kind])


def _x(place: int, count: int) -> float:
    return round(LEFT + place * (WIDTH - LEFT) / count, 1)


def _y(value: int, top: int) -> float:
    return round((HEIGHT - BOTTOM) * (1 - value / top) + TOP * value / top, 1)


def _label_positions(begin: int, step: int, count: int) -> Sequence[int]:
    """Return the bars with a time label: at most five, at round times if possible."""
    for interval in (each for each in STEPS if each >= step):
        positions = [place for place in range(count) if (begin + place * step) % interval == 0]
        if len(positions) <= 5:
            return positions or [0]
    return [0]


def _round_up(value: int) -> int:
    """Round up to 1, 2, 4, 10, 20, 40, ..., whose halves are round too."""
    unit = 1
    while True:
        for each in (1, 2, 4):
            if each * unit >= value:
                return each * unit
        unit *= 10


def _short(value: int) -> str:
    """Write a number in a few characters: 5,000, 20k, 1M."""
    for unit, sign in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if value >= 10 * unit or (unit > 1_000 and value >= unit):
            return f"{value / unit:g}{sign}"
    return f"{value:,}"
