"""The ``conclave receipts`` commands."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import click
from rich.table import Table

from conclave.actions.receipts import check_chain, list_last
from conclave.cli.common import MOST, InputError, Name, config_option
from conclave.cli.opened_store import opened_store
from conclave.cli.tables import counted, print_whole, second
from conclave.store.resources.receipts import Receipt


@click.group()
def receipts() -> None:
    """See the receipts of what runs have erased, and check them."""


class _Known(click.ParamType[tuple[int, bytes]]):
    """NUMBER:HASH, as ``receipts verify`` prints it."""

    name = "NUMBER:HASH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, bytes]:
        """Return both."""
        number, _, digest = str(value).partition(":")
        try:
            found = int(number), bytes.fromhex(digest)
        except ValueError:
            found = 0, b""
        if len(found[1]) != 32 or not 1 <= found[0] <= MOST:  # SHA-256
            self.fail(f"{value!r} is not a number, a colon and 64 hexadecimal digits", param, ctx)
        return found


@receipts.command(short_help="Check whether receipts were changed.")
@config_option
@click.option("--known", type=_Known(), metavar="NUMBER:HASH", help="A receipt that an earlier check has printed.")
def verify(path: Path | None, known: tuple[int, bytes] | None) -> None:
    """Compute the chain of receipts again; exit with 1 if one was changed, added or removed.

    A process that can write the database can write a whole new chain. Keep the number and hash that this prints
    elsewhere, and name them with --known later: then a new chain cannot pass for the old one.
    """
    with opened_store(path) as outside:
        chain, is_known = outside.read(check_chain, known)
    if chain.broken_at is not None:
        click.echo(
            f"conclave: receipt {chain.broken_at} does not follow from the one before it: it was changed, or one before"
            " it was added or removed; compare with a backup",
            err=True,
        )
    if known and not is_known:
        click.echo(
            f"conclave: receipt {known[0]} is not here, or has another hash than --known says: receipts were changed or"
            " removed since, or the database is older or another one",
            err=True,
        )
    if chain.broken_at is not None or not is_known:
        sys.exit(1)
    click.echo(f"{counted(chain.count, 'receipt')}, each follows from the one before it")
    if chain.last_id:
        click.echo(f"the last one: {chain.last_id}:{chain.head.hex()}")


@receipts.command()
@config_option
@click.option("--group", type=Name(), metavar="ID|NAME", help="Only receipts of this group, deleted or not.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1_000_000), help="How many receipts.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; times in Unix seconds.")
def show(path: Path | None, group: str | None, limit: int, *, as_json: bool) -> None:
    """Print the last receipts, the newest first."""
    with opened_store(path) as outside:
        listed = outside.read(list_last, limit, group)
        if listed is None:
            raise InputError(f"no such group: {group!r}; a deleted group has to be named by its id")
    if as_json:
        for each in listed:
            click.echo(json.dumps(vars(each) | {"group_id": _id(each.group_id), "hash": each.hash.hex()}))
    else:
        _print(listed)


def _print(listed: Sequence[Receipt]) -> None:
    table = Table(
        *("receipt", "when (UTC)", "group", "rule", "messages", "up to number"),
        *("newest (UTC)", "job"),
    )
    for each in listed:
        table.add_row(
            *(str(each.receipt_id), second(each.at), _id(each.group_id), each.rule),
            *(f"{each.messages:,}", str(each.last_seq)),
            *(second(each.newest), each.job),
        )
    print_whole(table, "no receipts")


def _id(group_id: bytes) -> str:
    return str(UUID(bytes=group_id)) if group_id else ""
