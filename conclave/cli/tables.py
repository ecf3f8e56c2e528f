"""What commands share to print: tables, times, and text that users have chosen."""

from collections.abc import Iterator, Sequence

import click
from rich.box import HEAVY_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table

from conclave.logs.lines import about, counted, second, visible

__all__ = ["WIDTH_OF_FILES", "about", "counted", "print_whole", "second", "visible"]

WIDTH_OF_FILES = 400
"""A table that does not go to a terminal has 400 columns: enough for rows in one piece."""

_FRAME = 3
"""A column takes 3 characters more than its cells: two spaces and a line."""


def print_whole(table: Table, empty: str) -> None:
    """Print a table of which nothing is cut off, whether it goes to a terminal or not.

    Cells are text: no markup, and what would deceive in them is made visible. On a terminal that is too narrow, print
    the rows one below the other, a line for each cell. Without rows print ``empty``. As nothing is ever wrapped, a row
    takes some microseconds. Rich would take a millisecond: with 100,000 users that is too long.
    """
    console = Console()
    width = console.width if console.is_terminal else WIDTH_OF_FILES
    columns = [[visible(str(cell)) for cell in _cells(each, table)] for each in table.columns]
    widths = [max(map(cell_len, cells)) for cells in columns]
    lines = [visible(str(table.title))] if table.title else []
    if not table.row_count:
        lines = [empty]
    elif sum(widths) + _FRAME * len(widths) < width:
        lines += _framed(table, columns, widths, console)
    else:
        lines += _below_each_other(columns)
    click.echo("\n".join(lines))


def _cells(column: Column, table: Table) -> list[object]:
    """Return the header of a column, its cells, and its footer if the table shows one."""
    return [column.header, *column.cells, *([column.footer] if table.show_footer else [])]


def _framed(table: Table, columns: Sequence[Sequence[str]], widths: Sequence[int], console: Console) -> Iterator[str]:
    """Yield rows with lines around them, between their cells, below the headers and above the footers."""
    box = HEAVY_HEAD.substitute(console.options)
    wide = [width + 2 for width in widths]
    rights = [column.justify == "right" for column in table.columns]
    yield box.get_top(wide)
    head, *rows = zip(*columns, strict=True)
    yield _row(head, widths, rights, box.head_left, box.head_vertical)
    yield box.get_row(wide, "head")
    for place, cells in enumerate(rows):
        if place == table.row_count:
            yield box.get_row(wide, "foot")
        yield _row(cells, widths, rights, box.mid_left, box.mid_vertical)
    yield box.get_bottom(wide)


def _row(cells: Sequence[str], widths: Sequence[int], rights: Sequence[bool], edge: str, between: str) -> str:
    filled = []
    for cell, width, is_right in zip(cells, widths, rights, strict=True):
        space = " " * (width - cell_len(cell))
        filled.append(f" {space}{cell} " if is_right else f" {cell}{space} ")
    return f"{edge}{between.join(filled)}{edge}"


def _below_each_other(columns: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield each row as lines of a header and a cell. Empty cells have none."""
    head, *rows = zip(*columns, strict=True)
    width = max(map(len, head)) + 2
    for cells in rows:
        yield ""
        for name, cell in zip(head, cells, strict=True):
            if cell:
                yield f"{name}:".ljust(width) + cell
