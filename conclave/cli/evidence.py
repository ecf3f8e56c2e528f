"""The ``conclave evidence`` commands: the audit log, the receipts of erasures, and the ledger."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import click
from rich.table import Table

from conclave.actions import evidence as actions
from conclave.cli.common import (
    MAX_NUMBER,
    CliError,
    DurationParam,
    TextParam,
    command_config,
    config_option,
    one_line_errors,
)
from conclave.cli.open_store import open_store
from conclave.cli.tables import counted, print_table, second
from conclave.config.load import ConfigError
from conclave.store.ledger import book
from conclave.store.ledger.book import LedgerError
from conclave.store.resources.audit import AuditEntry
from conclave.store.resources.receipts import Receipt

_TIMES = ("added_at", "before", "expired_before")
"""Details of audit entries that are Unix seconds, or a pair of the old and the new one."""


@click.group()
def evidence() -> None:
    """Print the audit log, receipts, and the ledger."""


@evidence.command()
@config_option
@click.option("--group", type=TextParam(), metavar="ID|NAME", help="Only entries about this group, deleted or not.")
@click.option("--user", type=TextParam(), metavar="ID|NAME", help="Only entries about this user, deleted or not.")
@click.option("--since", type=DurationParam(), metavar="DURATION", help="Only entries of the last 30d, for example.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1_000_000), help="How many entries.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; times in Unix seconds.")
def audit(
    path: Path | None, group: str | None, user: str | None, since: int | None, limit: int, *, as_json: bool
) -> None:
    """Print the audit log.

    It records who changed policies, holds and accounts, and when.
    """
    if group is not None and user is not None:
        raise click.UsageError("--group and --user exclude each other: an entry is about one of them")
    with open_store(path) as outside:
        entries = outside.read(actions.list_audit_log, outside.context(), limit, since, group, user)
    if as_json:
        for each in entries:
            click.echo(json.dumps(_entry_object(each)))
    else:
        _print_entries(entries)


def _entry_object(entry: AuditEntry) -> dict[str, Any]:
    return {
        "id": entry.audit_id,
        "at": entry.at,
        "actor": entry.actor,
        "action": entry.action,
        "subject_id": _id(entry.subject.subject_id) or None,
        "subject": entry.subject.name,
        "details": entry.details,
    }


def _print_entries(entries: Sequence[AuditEntry]) -> None:
    table = Table("entry", "when (UTC)", "who", "what", "about", "id", "details")
    for each in entries:
        cells = each.actor, each.action, each.subject.name, _id(each.subject.subject_id), _details_text(each.details)
        table.add_row(str(each.audit_id), second(each.at), *cells)
    print_table(table, "no entries")


def _details_text(details: Any) -> str:
    """Write details in one line, as in: hold 3, reason "as asked", added_at 2026-01-31 12:00:00."""
    changed = (f"{name} {_changed(*values)}" for name, values in details.get("changed", {}).items())
    others = (f"{name} {_value(name, value)}" for name, value in details.items() if name != "changed")
    return ", ".join((*changed, *others))


def _value(name: str, value: Any) -> str:
    if name in _TIMES:
        return _changed(*map(_time, value)) if isinstance(value, list) else _time(value)
    return json.dumps(value, ensure_ascii=False)


def _changed(old: Any, new: Any) -> str:
    return f"from {_set(old)} to {_set(new)}"


def _set(value: Any) -> str:
    return "unset" if value is None else value if isinstance(value, str) else json.dumps(value)


def _time(seconds: int) -> str:
    return second(seconds) if seconds else "none"


class _KnownReceipt(click.ParamType[tuple[int, bytes]]):
    """NUMBER:HASH, as ``evidence verify`` prints it."""

    name = "NUMBER:HASH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, bytes]:
        """Return both."""
        number, _, digest = str(value).partition(":")
        try:
            found = int(number), bytes.fromhex(digest)
        except ValueError:
            found = 0, b""
        if len(found[1]) != 32 or not 1 <= found[0] <= MAX_NUMBER:  # SHA-256
            self.fail(f"{value!r} is not a number, a colon and 64 hexadecimal digits", param, ctx)
        return found


@evidence.command(short_help="Verify the chain of receipts.")
@config_option
@click.option("--known", type=_KnownReceipt(), metavar="NUMBER:HASH", help="A receipt that an earlier check printed.")
def verify(path: Path | None, known: tuple[int, bytes] | None) -> None:
    """Recompute the chain of receipts; exit with 1 if one was changed, added or removed.

    A process that can write the database can write a whole new chain. Keep the number and hash that this prints
    elsewhere and pass them as --known later: a new chain then fails.
    """
    with open_store(path) as outside:
        checked, is_known = outside.read(actions.check_receipts, known)
    if checked.broken_at is not None:
        click.echo(
            f"conclave: receipt {checked.broken_at} does not follow from the one before it: it was changed, or an"
            " earlier one was added or removed; compare with a backup",
            err=True,
        )
    if known and not is_known:
        click.echo(
            f"conclave: receipt {known[0]} is missing, or its hash differs from --known: receipts were changed or"
            " removed since, or this is an older or another database",
            err=True,
        )
    if checked.broken_at is not None or not is_known:
        sys.exit(1)
    click.echo(f"{counted(checked.count, 'receipt')}, each follows from the one before it")
    if checked.last_id:
        click.echo(f"the last one: {checked.last_id}:{checked.head.hex()}")


@evidence.command()
@config_option
@click.option("--group", type=TextParam(), metavar="ID|NAME", help="Only receipts of this group, deleted or not.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1_000_000), help="How many receipts.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; times in Unix seconds.")
def receipts(path: Path | None, group: str | None, limit: int, *, as_json: bool) -> None:
    """Print receipts of erasures, newest first."""
    with open_store(path) as outside:
        listed = outside.read(actions.list_receipts, limit, group)
        if listed is None:
            raise CliError(f"no such group: {group!r}; use the id for a deleted group")
    if as_json:
        for each in listed:
            click.echo(json.dumps(vars(each) | {"group_id": _id(each.group_id), "hash": each.hash.hex()}))
    else:
        _print_receipts(listed)


def _print_receipts(listed: Sequence[Receipt]) -> None:
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
    print_table(table, "no receipts")


@evidence.command()
@config_option
@click.option(
    "--after", default=0, type=click.IntRange(min=0), metavar="NUMBER", help="Only changes with later numbers."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; times in Unix seconds.")
def ledger(path: Path | None, after: int, *, as_json: bool) -> None:
    """Print the ledger in the vault.

    It has the changes that a restored backup must not undo, in the order in which they were written.
    """
    with one_line_errors(ConfigError, LedgerError):
        place = command_config(path).ledger_path
        found = book.inspect(place)
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
            print_table(table, "no entries")
        if found.damage:
            raise LedgerError(f"{place}: {found.damage}")


def _id(raw: bytes) -> str:
    return str(UUID(bytes=raw)) if raw else ""
