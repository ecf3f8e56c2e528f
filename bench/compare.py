"""Compares the figures of two runs: ``python -m bench.compare BEFORE AFTER``, files that ``--json`` has written."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.figures import number

SHOWN = ("value", "median", "p50", "p99")
"""Of the values of a figure these are compared."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.compare", description="Compares the figures of two runs.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    asked = parser.parse_args()
    before, after = (_values(json.loads(path.read_text())) for path in (asked.before, asked.after))
    table = Table("part", "what", "before", "after", "after / before")
    for key in (each for each in before if each in after):
        part, what, unit = key
        one, other = before[key], after[key]
        table.add_row(
            part, what, f"{number(one)} {unit}", f"{number(other)} {unit}", f"{other / one:.2f}" if one else ""
        )
    Console(width=None if sys.stdout.isatty() else 130).print(table)


def _values(run: Mapping[str, list[dict[str, Any]]]) -> dict[tuple[str, str, str], float]:
    """What is compared, by part, by what it is a figure of, and by unit."""
    return {
        (part, _named(figure["what"], name), figure["unit"]): value
        for part, figures in run.items()
        for figure in figures
        for name, value in figure["values"].items()
        if name in SHOWN
    }


def _named(what: str, value: str) -> str:
    return f"{what.partition(': p50')[0]}, {value}" if value.startswith("p") else what


if __name__ == "__main__":
    main()
