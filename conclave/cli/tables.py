"""What commands share to print: tables, times, and text that somebody else has chosen."""

from datetime import UTC, datetime

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from conclave.retention.durations import duration_text

WIDTH_OF_FILES = 400
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


def counted(count: int, noun: str) -> str:
    """Write a number of things: 1 message, 2 messages."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def about(seconds: int) -> str:
    """Write seconds in the greatest unit, up to days, of which there are at least two. Rounds down."""
    unit = next((unit for unit in (86_400, 3_600, 60) if seconds >= 2 * unit), 1)
    return duration_text(seconds - seconds % unit) if seconds > 0 else "0s"


def print_whole(table: Table, empty: str) -> None:
    """Print a table of which nothing is cut off, whether it goes to a terminal or not.

    On a terminal that is too narrow for it, print the rows one below the other, a line for each cell. Without rows
    print ``empty``.
    """
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH_OF_FILES
    for column in table.columns:
        column.overflow = "fold"
    if not table.row_count:
        console.print(empty, markup=False, highlight=False)
    elif Measurement.get(console, console.options.update_width(WIDTH_OF_FILES), table).maximum > console.width:
        _print_rows(table, console)
    else:
        console.print(table)


def _print_rows(table: Table, console: Console) -> None:
    if table.title:
        console.print(table.title)
    names = [str(column.header) for column in table.columns]
    width = max(map(len, names)) + 2
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    if table.show_footer:
        rows.append(tuple(column.footer for column in table.columns))
    for cells in rows:
        console.print()
        for name, cell in zip(names, cells, strict=True):
            line = Text(f"{name}:".ljust(width)) + (cell if isinstance(cell, Text) else Text.from_markup(str(cell)))
            if str(cell):
                console.print(line, soft_wrap=True, highlight=False)
