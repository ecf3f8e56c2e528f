"""Compares the hot paths of other checkouts with those of this one: ``python -m bench.in_turn CHECKOUT...``.

What a part measures differs by a fifth from run to run, with what the machine does beside. A change of a twentieth
shows only where the versions run at the same time and are asked in turn, a second each, many times over. Each checkout
needs a ``.venv`` of its own; its server and its store are made by its own code. ``--random-pages`` asks for pages that
begin anywhere in a larger store.
"""

import argparse
import pickle
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.load import Load, run
from bench.process import cpu_seconds

HERE = Path(__file__).resolve().parent.parent
SERVE = HERE / "bench" / "served.py"
ROUNDS, ROUND_SECONDS = 20, 1.0

Requests = Sequence[Sequence[bytes]]


@dataclass(frozen=True)
class Side:
    """A server that runs. ``requests``: those of each connection, by the case."""

    name: str
    port: int
    pid: int
    requests: dict[str, Requests]


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.in_turn", description="Compares checkouts with this one, in turn.")
    parser.add_argument("checkout", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="", metavar="WORD", help="only the cases that have this in their names")
    parser.add_argument("--random-pages", action="store_true", help="pages at random numbers of 400,000 messages")
    asked = parser.parse_args()
    table = Table("what", "version", "rate", "of this", "processor time", "of this")
    with ExitStack() as stack:
        chosen = ["random-pages"] if asked.random_pages else []
        sides = [stack.enter_context(_served(each, chosen)) for each in (HERE, *asked.checkout)]
        for case in (each for each in sides[0].requests if asked.only in each):
            took = [_ask_all(sides, case, n, asked.rounds if chosen else 1) for n in range(asked.rounds)]
            for place, side in enumerate(sides):
                rates, times = zip(*(each[place] for each in took), strict=True)
                table.add_row(
                    *(case, side.name, f"{statistics.median(rates):,.0f} /s", _of_first(took, place, 0)),
                    *(f"{statistics.median(times) * 1e6:,.0f} us", _of_first(took, place, 1)),
                )
            table.add_section()
    Console(width=None if sys.stdout.isatty() else 130).print(table)


@contextmanager
def _served(checkout: Path, chosen: Sequence[str]) -> Iterator[Side]:
    """Have a checkout's own code serve a store until the block ends, and with it the input of the process."""
    own = checkout.resolve()
    command: list[str | Path] = [own / ".venv" / "bin" / "python", SERVE, *chosen]
    with subprocess.Popen(command, cwd=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        port, pid, requests = pickle.load(process.stdout)
        yield Side(own.name, port, pid, requests)


def _ask_all(sides: Sequence[Side], case: str, first: int, parts: int) -> list[tuple[float, float]]:
    """Ask each once, beginning with another one each time. ``parts``: each round asks another part of the requests."""
    places = [(first + each) % len(sides) for each in range(len(sides))]
    took = {place: _ask(sides[place], case, first % parts, parts) for place in places}
    return [took[place] for place in range(len(sides))]


def _ask(side: Side, case: str, part: int, parts: int) -> tuple[float, float]:
    """Ask for a second. Return the rate, and the server's processor seconds for an answer."""
    before = cpu_seconds(side.pid)
    requests = [each[part::parts] for each in side.requests[case]]
    outcome = run(Load(side.port, requests, ROUND_SECONDS))
    return outcome.rate, (cpu_seconds(side.pid) - before) / outcome.answered


def _of_first(took: Sequence[Sequence[tuple[float, float]]], place: int, which: int) -> str:
    """Return the geometric mean of the rounds' ratios, and its standard error."""
    ratios = [each[place][which] / each[0][which] for each in took]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0
    return f"{statistics.geometric_mean(ratios):.3f} ({error:.3f})" if place else ""


if __name__ == "__main__":
    main()
