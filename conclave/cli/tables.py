"""What commands share to print: tables, times, and text that somebody else has chosen."""

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from conclave.plain import about, counted, second, visible

__all__ = ["WIDTH_OF_FILES", "about", "counted", "print_whole", "second", "visible"]

WIDTH_OF_FILES = 400
"""A table that does not go to a terminal has 400 columns: enough for rows in one piece."""


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
