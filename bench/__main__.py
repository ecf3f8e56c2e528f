"""Runs the parts and prints one table; with ``--json FILE`` it writes the figures to a file too."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import (
    archive,
    archive_serving,
    backup,
    browser,
    cleanup,
    cluster,
    cold,
    curves,
    hot,
    keys,
    large,
    mls,
    oversized,
    page,
    policies,
    scale,
    sending,
    serving,
    soak,
    streams,
    timers,
    unreadable,
    way_in,
)
from bench.figures import Figure

PARTS: dict[str, Callable[[Path], list[Figure]]] = {
    "start": serving.start,
    "idle": serving.idle,
    "cleanup": cleanup.nothing_due,
    "policies": policies.nothing_due,
    "hot": hot.ratios,
    "way-in": way_in.forms,
    "cold": cold.reading,
    "send": sending.throughput,
    "streams": streams.many,
    "timers": timers.many,
    "erase": sending.erasing,
    "purge": sending.purging,
    "move": sending.moving,
    "backup": backup.whole,
    "archive": archive.runs,
    "archive-pages": archive_serving.pages,
    "cluster": cluster.runs,
    "oversized": oversized.largest,
    "page": page.whole,
    "browser": browser.page,
    "keys": keys.groups,
    "unreadable": unreadable.soon,
    "mls": mls.groups,
    "scale": scale.runs,
    "large": large.sizes,
    "soak": soak.hours,
    "plots": curves.sends,
}

ONLY_BY_NAME = {"cluster", "large", "plots", "scale", "soak"}
"""Plots change files of the tree: not wanted for a mere measurement. The scale takes long, and 4 GB of disk,
large archives longer, and 35 GB; the soak takes three hours.

The cluster is ten processes of Java at the same time.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description="Measures what docs/performance.md says.")
    parser.add_argument(
        "part",
        nargs="*",
        metavar="PART",
        help=f"one of {', '.join(PARTS)}; by default all but {', '.join(ONLY_BY_NAME)}",
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    asked = parser.parse_args()
    if unknown := set(asked.part) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    table = Table("part", "what", "measured", "target", "", title="median (least - most)", title_justify="left")
    figures: dict[str, list[Figure]] = {}
    for name in asked.part or [each for each in PARTS if each not in ONLY_BY_NAME]:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="conclave-bench-") as folder:
            figures[name] = PARTS[name](Path(folder))
        for figure in figures[name]:
            table.add_row(name, figure.what, figure.measured, figure.target, figure.verdict)
        table.add_section()
        if asked.json:  # after each part: the next one may fail
            _write(asked.json, figures)
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    Console(width=None if sys.stdout.isatty() else 130).print(table)


def _write(path: Path, figures: Mapping[str, Sequence[Figure]]) -> None:
    found = {name: [asdict(each) for each in of_part] for name, of_part in figures.items()}
    path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
