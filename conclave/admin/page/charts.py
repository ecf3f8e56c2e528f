"""Lays out the charts of the operators' page: bars in stacks, as numbers for the template that draws them. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from conclave.logs.lines import second

WIDTH, HEIGHT, TOP = 720, 190, 16
"""The plane of a chart, in units of its own: it is shown as wide as the page is."""

LEFT, BOTTOM = 72, 26
"""What the numbers and the times beside the axes take of the plane."""

MAX_BARS = 48

STEPS = (60, 300, 900, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)
"""The lengths of time that a bar may stand for, in seconds."""


class DataPoint(NamedTuple):
    """What happened at the Unix second ``at``: how much of each kind."""

    at: int
    kinds: Mapping[str, int]


@dataclass(frozen=True)
class BarSegment:
    """A rectangle of a bar."""

    place: int
    """Of its kind among the kinds of the chart."""
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Bar:
    """A bar, and what it says in words."""

    pieces: Sequence[BarSegment]
    text: str


class AxisLabel(NamedTuple):
    """A text beside an axis, and where it stands."""

    at: float
    text: str


@dataclass(frozen=True)
class Chart:
    """Bars in stacks over time."""

    bars: Sequence[Bar]
    totals: Mapping[str, int]
    """Of each kind."""
    heights: Sequence[AxisLabel]
    times: Sequence[AxisLabel]
    step: int
    text: str
    """What the chart shows, for who cannot see it."""


def stacked_chart(amounts: Iterable[DataPoint], kinds: Sequence[str], now: int) -> Chart | None:
    """Lay out how much of each of ``kinds`` there was, until the Unix second ``now``. None: there was nothing yet."""
    found = [each for each in amounts if each.at <= now]
    if not found:
        return None
    first = min(each.at for each in found)
    step = next((step for step in STEPS if (now - first) // step + 2 <= MAX_BARS), STEPS[-1])
    begin = first - first % step
    count = min((now - begin) // step + 1, MAX_BARS)
    begin = max(begin, now - now % step - (count - 1) * step)
    sums: list[Counter[str]] = [Counter() for _ in range(count)]
    for each in found:
        if each.at >= begin:
            sums[(each.at - begin) // step].update(each.kinds)
    top = _round_up(max(sum(each[kind] for kind in kinds) for each in sums))
    bars = [
        _bar(place, begin + place * step, each, kinds, count, top) for place, each in enumerate(sums) if each.total()
    ]
    totals = {kind: sum(each[kind] for each in sums) for kind in kinds}
    times = [AxisLabel(_x(place, count), second(begin + place * step)[5:16]) for place in _labelled(begin, step, count)]
    heights = [AxisLabel(_y(value, top), _short(value)) for value in sorted({0, top // 2, top})]
    gone = _said(totals, kinds) or "nothing"
    text = f"From {second(begin)} to {second(now)} UTC: {gone}."
    return Chart(bars, totals, heights, times, step, text)


def _bar(place: int, at: int, amount: Counter[str], kinds: Sequence[str], count: int, top: int) -> Bar:
    pieces, below = [], 0
    width = (WIDTH - LEFT) / count
    for number, kind in enumerate(kinds):
        if amount[kind]:
            y = _y(below + amount[kind], top)
            pieces.append(BarSegment(number, _x(place, count), y, max(1.0, width * 0.85), _y(below, top) - y))
            below += amount[kind]
    return Bar(pieces, f"{second(at)} UTC: {_said(amount, kinds)}")


def _said(amount: Mapping[str, int], kinds: Sequence[str]) -> str:
    return ", ".join(f"{amount[kind]:,} {kind.replace('_', ' ')}" for kind in kinds if amount[kind])


def _x(place: int, count: int) -> float:
    return round(LEFT + place * (WIDTH - LEFT) / count, 1)


def _y(value: int, top: int) -> float:
    return round((HEIGHT - BOTTOM) * (1 - value / top) + TOP * value / top, 1)


def _labelled(begin: int, step: int, count: int) -> Sequence[int]:
    """Return at which bars a time stands: at five of them at most, at round times if there are any."""
    for apart in (each for each in STEPS if each >= step):
        round_ones = [place for place in range(count) if (begin + place * step) % apart == 0]
        if len(round_ones) <= 5:
            return round_ones or [0]
    return [0]


def _round_up(value: int) -> int:
    """Return the least number of the kind 1, 2, 4, 10, 20, 40, ... not below ``value``: half of it is round too."""
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
