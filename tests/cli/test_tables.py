"""Tables that commands print: whole, one line a row, and quick however many rows there are."""

import pytest
from rich.table import Table

from conclave.cli.tables import FILE_WIDTH, print_table


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def printed(table: Table, capsys: pytest.CaptureFixture[str], empty: str = "nothing") -> list[str]:
    print_table(table, empty)
    return capsys.readouterr().out.splitlines()


def test_cells_stand_below_each_other_also_where_characters_are_wide(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name", "count", title="A title")
    table.columns[1].justify = "right"
    table.add_row("\u65e5\u672c", "7")
    table.add_row("plain", "1,000")
    assert printed(table, capsys) == [
        "A title",
        "┏━━━━━━━┳━━━━━━━┓",
        "┃ name  ┃ count ┃",
        "┡━━━━━━━╇━━━━━━━┩",
        "│ \u65e5\u672c  │     7 │",
        "│ plain │ 1,000 │",
        "└───────┴───────┘",
    ]


def test_a_footer_has_a_line_above_it(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("month", show_footer=True)
    table.columns[0].footer = "total"
    table.add_row("June")
    assert printed(table, capsys)[-4:] == ["│ June  │", "├───────┤", "│ total │", "└───────┘"]


def test_a_table_without_rows_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(Table("name"), capsys, "no accounts") == ["no accounts"]


def test_what_is_too_wide_stands_in_lines_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name", "alias", "note")
    table.add_row("alice", "", "x" * FILE_WIDTH)
    assert printed(table, capsys) == ["", "name:  alice", f"note:  {'x' * FILE_WIDTH}"]


def test_no_cell_is_markup_or_moves_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("alias")
    table.add_row("[red]a[/red] :smile:\x1b[2J\n\u202eb\x9b")
    assert "│ [red]a[/red] :smile:\\x1b[2J\\n\\u202eb\\x9b │" in printed(table, capsys)


def test_a_row_costs_no_measuring_and_wrapping(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich's own printing of tables takes a millisecond for a row: minutes for 100,000 users."""
    monkeypatch.setattr(Table, "__rich_console__", None)
    monkeypatch.setattr(Table, "__rich_measure__", None)
    table = Table(*"abcdefgh")
    for number in range(20_000):
        table.add_row(*(str(number + place) for place in range(8)))
    assert len(printed(table, capsys)) == 20_004
