"""Draws what a terminal shows as a picture for the docs: SVG in two colour schemes, which loads nothing."""

from collections import Counter
from html import escape
from typing import NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from textual.strip import Strip

CELL, LINE, MARGIN = 8.4, 18, 10
"""The size of a character's place, and what is left free around all of them, in pixels."""


DAY, NIGHT = ("#1d242c", "#fbfaf7"), ("#d8dee6", "#12161c")
"""Letters and ground of a terminal without colours."""


class Look(NamedTuple):
    """How a character looks: its colours by day and by night, whether it is bold, and italic."""

    ink: tuple[str, str]
    ground: tuple[str, str]
    bold: bool
    italic: bool
    underline: bool


Run = tuple[int, int, str, Look]
"""Where it begins in its row, its width, its text, its look."""


def drawn(by_day: list[Strip], by_night: list[Strip], title: str, description: str) -> str:
    """Return a picture of one screen, drawn in a light and in a dark theme."""
    rows = [_runs(day, night) for day, night in zip(by_day, by_night, strict=True)]
    paper = _paper(rows)
    colours = {paper: "paper"}
    grounds, texts = [], []
    for y, row in enumerate(rows):
        for x, width, text, look in row:
            left, top = MARGIN + x * CELL, MARGIN + y * LINE
            if look.ground != paper:
                name = colours.setdefault(look.ground, f"c{len(colours)}")
                grounds.append(
                    f'<rect class="{name}" x="{left:g}" y="{top}" width="{width * CELL:.1f}" height="{LINE}"/>'
                )
            if text.strip():
                begin = len(text) - len(text.lstrip(" "))
                shown = text.strip(" ")
                name = colours.setdefault(look.ink, f"c{len(colours)}")
                more = " b" * look.bold + " i" * look.italic + " u" * look.underline
                size = f"{cell_len(shown) * CELL:.1f}"
                texts.append(
                    f'<text class="{name}{more}" x="{left + begin * CELL:g}" y="{top + 13}" textLength="{size}">'
                    f"{escape(shown)}</text>"
                )
    width = 2 * MARGIN + round(by_day[0].cell_length * CELL)
    height = 2 * MARGIN + len(by_day) * LINE
    styles = [
        "\n".join(f"    .{name} {{ fill: {colour[which]} }}" for colour, name in colours.items()) for which in (0, 1)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' role="img" aria-labelledby="title desc">',
            f'  <title id="title">{escape(title)}</title>',
            f'  <desc id="desc">{escape(description)}</desc>',
            "  <style>",
            "    text { font: 14px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; white-space: pre }",
            "    .b { font-weight: 700 }",
            "    .i { font-style: italic }",
            "    .u { text-decoration: underline }",
            styles[0],
            "    @media (prefers-color-scheme: dark) {",
            styles[1],
            "    }",
            "  </style>",
            f'  <rect class="paper" width="{width}" height="{height}" rx="8"/>',
            *(f"  {each}" for each in grounds + texts),
            "</svg>",
            "",
        ]
    )


def faintest(strips: list[Strip]) -> tuple[float, str]:
    """Return the least contrast that a word or number has with its ground, as WCAG counts it, and that text."""
    texts = (
        (look, text) for strip in strips for _, _, text, look in _runs(strip, strip) if any(map(str.isalnum, text))
    )
    return min((_contrast(look.ink[0], look.ground[0]), text) for look, text in texts)


def _contrast(ink: str, ground: str) -> float:
    light, dark = sorted((_luminance(each) for each in (ink, ground)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _paper(rows: list[list[Run]]) -> tuple[str, str]:
    """The ground of most of the screen."""
    totals: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for _, width, _, look in row:
            totals[look.ground] += width
    return totals.most_common(1)[0][0]


def _runs(day: Strip, night: Strip) -> list[Run]:
    """Return what stands in a row."""
    runs: list[Run] = []
    x = 0
    for (character, by_day), (same, by_night) in zip(_cells(day), _cells(night), strict=True):
        assert character == same, "both themes show the same"
        width = cell_len(character)
        ink, ground = ((_colours(by_day, DAY)[which], _colours(by_night, NIGHT)[which]) for which in (0, 1))
        assert by_day.style
        look = Look(ink, ground, *(bool(getattr(by_day.style, each)) for each in ("bold", "italic", "underline")))
        if runs and runs[-1][3] == look:
            begin, before, text, _ = runs.pop()
            runs.append((begin, before + width, text + character, look))
        else:
            runs.append((x, width, character, look))
        x += width
    return runs


def _cells(strip: Strip) -> list[tuple[str, Segment]]:
    return [(character, segment) for segment in strip for character in segment.text]


def _colours(segment: Segment, usual: tuple[str, str]) -> tuple[str, str]:
    """Return the colours of letters and ground. ``usual``: those of a terminal that is told none."""
    style = segment.style
    assert style
    told = (each.triplet.hex if each and each.triplet else "" for each in (style.color, style.bgcolor))
    ink, ground = (each or its_own for each, its_own in zip(told, usual, strict=True))
    return (ground, ink) if style.reverse else (ink, ground)
