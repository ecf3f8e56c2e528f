"""Tables and formatting that commands share."""

from collections.abc import Iterator, Sequence

import click
from rich.box import HEAVY_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table

from conclave.logs.lines import about, counted, second, visible

__all__ = ["FILE_WIDTH", "about", "counted", "print_table", "second", "visible"]

FILE_WIDTH = 400
"""The width of a table that is not printed to a terminal; rows are not wrapped."""

_FRAME = 3
"""The width of a column beside its cells: two spaces and a line."""


def print_table(table: Table, empty: str) -> None:
    """Print a table without cutting or wrapping cells; ``empty`` if it has no rows.

    Control characters in cells are made visible; there is no markup. On a terminal that is too narrow, each cell is
    printed on a line of its own. Formatting a row takes microseconds, with rich a millisecond, which is too slow for
    100,000 users.
    """
    console = Console()
    width = console.width if console.is_terminal else FILE_WIDTH
    columns = [[visible(str(cell)) for cell in _cells(each, table)] for each in table.columns]
    widths = [max(map(cell_len, cells)) for cells in columns]
    lines = [visible(str(table.title))] if table.title else []
    if not table.row_count:
        lines = [empty]
    elif sum(widths) + _FRAME * len(widths) < width:
        lines += _framed(table, columns, widths, console)
    else:
        lines += _stacked(columns)
    click.echo("\n".join(lines))


def _cells(column: Column, table: Table) -> list[object]:
    """Return header, cells, and footer of a column."""
    return [column.header, *column.cells, *([column.footer] if table.show_footer else [])]


def _framed(table: Table, columns: Sequence[Sequence[str]], widths: Sequence[int], console: Console) -> Iterator[str]:
    """Yield rows with borders."""
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


def _stacked(columns: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield each row as lines of header and cell, without empty cells."""
    head, *rows = zip(*columns, strict=True)
    width = max(map(len, head)) + 2
    for cells in rows:
        yield ""
        for name, cell in zip(head, cells, strict=True):
            if cell:
                yield f"{name}:".ljust(width) + cell
