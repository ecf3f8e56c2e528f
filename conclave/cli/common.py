"""What all commands share."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import click
from rich.console import Console
from rich.table import Table

from conclave.retention.durations import duration_text

_WIDTH_OF_FILES = 400
"""A table that does not go to a terminal has 400 columns: enough for rows in one piece."""

config_option = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="TOML file; default: ./conclave.toml, /etc/conclave/config.toml, built-in defaults.",
)


@contextmanager
def orderly_end() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, so that nothing is left behind.

    A terminal that closes sends SIGHUP. A signal that is ignored, or handled already, stays so.
    """
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) == signal.SIG_DFL]

    def end(number: int, _: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)  # a second signal would break off what the first has begun
        sys.exit(128 + number)

    for each in numbers:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)


@contextmanager
def one_line_errors(*expected: type[Exception]) -> Iterator[None]:
    """Print ``expected`` errors as lines on stderr, and exit with status 1.

    These are the errors that an operator can mend.
    """
    try:
        yield
    except expected as error:
        for line in str(error).splitlines():
            click.echo(f"conclave: {line}", err=True)
        sys.exit(1)


def visible(text: str) -> str:
    """Escape what a terminal would obey or hide: controls, marks of direction, characters without width."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def second(seconds: int) -> str:
    """Write a Unix second, in UTC, as operators read it."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return str(seconds)  # beyond the year 9999


def about(seconds: int) -> str:
    """Write seconds in the greatest unit, up to days, of which there are at least two. Rounds down."""
    unit = next((unit for unit in (86_400, 3_600, 60) if seconds >= 2 * unit), 1)
    return duration_text(seconds - seconds % unit) if seconds > 0 else "0s"


def print_whole(table: Table) -> None:
    """Print a table of which nothing is cut off, whether it goes to a terminal or not."""
    for column in table.columns:
        column.overflow = "fold"
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH_OF_FILES
    console.print(table)
