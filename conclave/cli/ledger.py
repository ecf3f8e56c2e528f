"""The ``conclave ledger`` commands."""

import json
from pathlib import Path

import click
from rich.table import Table

from conclave.cli.common import config_option, configured, one_line_errors
from conclave.cli.tables import print_whole, second
from conclave.config.load import ConfigError
from conclave.store.ledger import book
from conclave.store.ledger.book import LedgerError


@click.group()
def ledger() -> None:
    """See the ledger in the vault: what a restored backup must not bring back."""


@ledger.command()
@config_option
@click.option(
    "--after", default=0, type=click.IntRange(min=0), metavar="NUMBER", help="Only changes with later numbers."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; times in Unix seconds.")
def show(path: Path | None, after: int, *, as_json: bool) -> None:
    """Print the entries of the ledger in the order in which they were written. A server may run meanwhile."""
    with one_line_errors(ConfigError, LedgerError):
        place = configured(path).ledger_path
        found = book.look(place)
        if found is None:
            raise LedgerError(f"{place}: there is no ledger yet")
        entries = book.entries(place, after)
        if as_json:
            for each in entries:
                click.echo(json.dumps(each._asdict()))
        else:
            table = Table("change", "written (UTC)", "of a", "key or id", "state")
            for each in entries:
                state = "gone" if each.state is None else json.dumps(each.state)
                table.add_row(str(each.change), second(each.at), each.kind, str(each.subject), state)
            print_whole(table, "no entries")
        if found.damage:
            raise LedgerError(f"{place}: {found.damage}")
