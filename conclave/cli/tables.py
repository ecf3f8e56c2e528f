"""What commands share to print: tables, times, and text that somebody else has chosen."""

from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from conclave.retention.durations import duration_text

_WIDTH_OF_FILES = 400
"""A table that does not go to a terminal has 400 columns: enough for rows in one piece."""


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
