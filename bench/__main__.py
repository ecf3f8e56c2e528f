"""Runs the parts and prints one table."""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import archive, archive_serving, cleanup, oversized, sending, serving, streams
from bench.figures import Figure

PARTS: dict[str, Callable[[Path], list[Figure]]] = {
    "start": serving.start,
    "idle": serving.idle,
    "cleanup": cleanup.nothing_due,
    "send": sending.throughput,
    "streams": streams.many,
    "erase": sending.erasing,
    "purge": sending.purging,
    "move": sending.moving,
    "archive": archive.runs,
    "archive-pages": archive_serving.pages,
    "oversized": oversized.largest,
}


def main() -> None:
    names = sys.argv[1:] or list(PARTS)
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        sys.exit(f"bench: no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    table = Table("part", "what", "measured", "target", "", title="median (least - most)", title_justify="left")
    for name in names:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="conclave-bench-") as folder:
            for figure in PARTS[name](Path(folder)):
                table.add_row(name, figure.what, figure.measured, figure.target, figure.verdict)
        table.add_section()
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    Console(width=None if sys.stdout.isatty() else 130).print(table)


if __name__ == "__main__":
    main()
