"""Plots as SVG, readable on light and on dark pages: lines, and points over time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from xml.sax.saxutils import escape

from bench.figures import number

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 80, 40, 74, 56
COLOURS = ("#3b82c4", "#d9822b", "#3f9c6b", "#9b6fc7", "#c4554d")
"""Neither so dark nor so light that they vanish on a page of either kind."""

MOST_TICKS = 6
FEW_POWERS = 4
"""A logarithmic axis over at most four powers of ten has marks between them too."""

STYLE = (
    "svg{color:#57606a;font:13px sans-serif}text{fill:currentColor}"
    "@media (prefers-color-scheme:dark){svg{color:#b8c0c8}}"
)

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """What an axis says. ``ticks``: where its marks are; by default round numbers. A logarithmic one has no zero."""

    title: str
    is_log: bool = False
    ticks: Sequence[float] = ()


def lines(title: str, x: Axis, y: Axis, series: Mapping[str, Points]) -> str:
    """Return a plot with a line for each of ``series``, each with at least one point."""
    frame = _Frame(x, y, series)
    drawn = []
    for (name, points), colour in zip(series.items(), cycle(COLOURS), strict=False):
        path = " ".join(f"{frame.across(a):.1f},{frame.up(b):.1f}" for a, b in points)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for a, b in points:
            shown = f"{name}: {number(b)} at {number(a)}"
            drawn.append(
                f'<circle cx="{frame.across(a):.1f}" cy="{frame.up(b):.1f}" r="3" fill="{colour}">'
                f"<title>{escape(shown)}</title></circle>"
            )
    return _document(title, [*frame.drawn(), *drawn, *_legend(list(series))])


def over_time(title: str, y: Axis, series: Mapping[str, Points], shaded: tuple[float, float] | None = None) -> str:
    """Return a plot with a dot for each point, by the seconds at which it was.

    ``shaded``: from when until when something went on beside it. Dots that would lie on each other are drawn once.
    """
    frame = _Frame(Axis("seconds"), y, series)
    drawn = []
    if shaded:
        begin, end = (frame.across(each) for each in shaded)
        drawn.append(
            f'<rect x="{begin:.1f}" y="{TOP}" width="{end - begin:.1f}" height="{HEIGHT - TOP - BOTTOM}"'
            ' fill="currentColor" opacity="0.12"/>'
        )
    for points, colour in zip(series.values(), cycle(COLOURS), strict=False):
        places = dict.fromkeys((round(frame.across(a)), round(frame.up(b))) for a, b in points)
        dots = "".join(f"M{a} {b}h0" for a, b in places)
        drawn.append(f'<path d="{dots}" stroke="{colour}" stroke-width="3" stroke-linecap="round" opacity="0.7"/>')
    return _document(title, [*frame.drawn(), *drawn, *_legend(list(series))])


class _Frame:
    """Where values lie in a plot; its axes reach from the first to the last of their marks."""

    def __init__(self, x: Axis, y: Axis, series: Mapping[str, Points]) -> None:
        self._x, self._y = x, y
        self._across = x.ticks or _ticks([a for points in series.values() for a, _ in points], is_log=x.is_log)
        self._up = y.ticks or _ticks([b for points in series.values() for _, b in points], is_log=y.is_log)

    def across(self, value: float) -> float:
        return LEFT + _share(value, self._across, is_log=self._x.is_log) * (WIDTH - LEFT - RIGHT)

    def up(self, value: float) -> float:
        return HEIGHT - BOTTOM - _share(value, self._up, is_log=self._y.is_log) * (HEIGHT - TOP - BOTTOM)

    def drawn(self) -> list[str]:
        """The grid with its numbers, and the titles of the axes."""
        drawn = []
        for each in self._up:
            at = self.up(each)
            drawn += [_line(LEFT, at, WIDTH - RIGHT, at), _text(LEFT - 8, at + 4, number(each), "end")]
        for each in self._across:
            at = self.across(each)
            drawn += [_line(at, TOP, at, HEIGHT - BOTTOM), _text(at, HEIGHT - BOTTOM + 18, number(each), "middle")]
        middle = (TOP + HEIGHT - BOTTOM) / 2
        turned = f' transform="rotate(-90 18 {middle:.1f})"'
        drawn.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, self._x.title, "middle"))
        return [*drawn, _text(18, middle, self._y.title, "middle", turned)]


def _ticks(values: Sequence[float], *, is_log: bool) -> list[float]:
    """Round numbers of which the first and the last enclose ``values``."""
    least, most = min(values), max(values)
    if is_log:
        low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
        factors = (1, 2, 5) if high - low < FEW_POWERS else (1,)
        # A logarithm may have been rounded to a whole number.
        found = [factor * 10.0**power for power in range(low - 1, high + 2) for factor in factors]
        first = max(each for each in found if each <= least)
        last = min(each for each in found if each >= most and each > first)
        return [each for each in found if first <= each <= last]
    least = min(0.0, least)
    room = (most - least) or 1.0
    power = 10.0 ** math.floor(math.log10(room / MOST_TICKS))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if room / (factor * power) <= MOST_TICKS)
    return [n * step for n in range(math.floor(least / step), math.ceil((least + room) / step) + 1)]


def _share(value: float, ticks: Sequence[float], *, is_log: bool) -> float:
    """Where ``value`` lies between the first mark, 0, and the last one, 1."""
    first, last = ticks[0], ticks[-1]
    if is_log:
        return (math.log(value) - math.log(first)) / (math.log(last) - math.log(first))
    return (value - first) / (last - first)


def _document(title: str, drawn: Sequence[str]) -> str:
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{escape(title)}</title><style>{STYLE}</style>",
            _text(LEFT, 24, title, "start", ' font-weight="bold"'),
            *drawn,
            "</svg>\n",
        )
    )


def _legend(names: Sequence[str]) -> list[str]:
    """Name the lines, in as many rows as they need; there is room for two."""
    drawn, at, up = [], float(LEFT), 42.0
    for name, colour in zip(names, cycle(COLOURS), strict=False):
        wide = 44 + 7.5 * len(name)
        if at > LEFT and at + wide > WIDTH:
            at, up = float(LEFT), up + 18
        drawn.append(f'<rect x="{at:.0f}" y="{up:.0f}" width="14" height="4" fill="{colour}"/>')
        drawn.append(_text(at + 20, up + 7, name, "start"))
        at += wide
    return drawn


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="currentColor" opacity="0.2"/>'


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'
