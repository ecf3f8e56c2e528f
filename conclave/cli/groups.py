"""The ``conclave group`` commands."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from conclave.actions import explain as actions
from conclave.actions.explain import SettingsError
from conclave.cli.common import TextParam, config_option
from conclave.cli.open_store import open_store
from conclave.cli.tables import about, counted, print_table, second, visible
from conclave.retention.resolve import lifetime_text
from conclave.store.views.group_list import GroupSummary


@click.group()
def group() -> None:
    """List and show groups: policies, sizes, overdue messages."""


@group.command("list", short_help="List groups.")
@config_option
@click.option("--like", metavar="TEXT", default="", type=TextParam(), help="Only names or aliases that contain TEXT.")
@click.option("--overdue", is_flag=True, help="Only groups with overdue messages.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; times in Unix seconds.")
def list_groups(path: Path | None, like: str, *, overdue: bool, as_json: bool) -> None:
    """List groups by name. Deleted groups with remaining messages come first."""
    with open_store(path, SettingsError) as outside:
        now = outside.context().now()
        rows = outside.read(actions.list_groups, outside.config, now, like, only_overdue=overdue)
    if as_json:
        for row in rows:
            click.echo(json.dumps(asdict(row)))
    else:
        _show(rows, now)


@group.command(short_help="Show details of a group.")
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object; times in Unix seconds.")
@click.argument("name_or_id", metavar="GROUP", type=TextParam())
def show(path: Path | None, name_or_id: str, *, as_json: bool) -> None:
    """Show details of GROUP, a name or an id; use the id for a deleted group."""
    with open_store(path, SettingsError) as outside:
        now = outside.context().now()
        row, hot_bytes = outside.read(actions.show, outside.config, now, name_or_id)
    if as_json:
        click.echo(json.dumps(asdict(row) | {"hot_bytes": hot_bytes}))
        return
    for name, value in _lines(row, hot_bytes, now):
        click.echo(f"{name + ':':19}{value}")


def _show(rows: Sequence[GroupSummary], now: int) -> None:
    table = Table("name", "id", "kept", "by", "members", "messages", "archived", "oldest (UTC)", "holds", "overdue")
    for each in rows:
        table.add_row(
            "(deleted)" if each.deleted_at is not None else each.name,
            each.group_id,
            lifetime_text(each.lifetime),
            each.source,
            str(each.members),
            f"{each.hot_messages:,}",
            f"{each.archived_messages:,}",
            "" if each.oldest is None else second(each.oldest),
            str(each.holds or ""),
            _overdue(each, now),
        )
    print_table(table, "no groups")


def _overdue(row: GroupSummary, now: int) -> str:
    if row.overdue_since is None:
        return ""
    return f"for {about(now - row.overdue_since)}{' (late)' if row.is_late else ''}"


def _lines(row: GroupSummary, hot_bytes: int, now: int) -> Iterator[tuple[str, str]]:
    """Yield names and values for one group."""
    yield "group", row.name or "(deleted)"
    yield "id", row.group_id
    if row.alias:
        yield "alias", visible(row.alias)
    if row.deleted_at is not None:
        yield "deleted", f"{second(row.deleted_at)} UTC"
    yield "messages are kept", f"{lifetime_text(row.lifetime)} (by: {row.source})"
    if row.min_lifetime:
        yield "min_lifetime", lifetime_text(row.min_lifetime)
    yield "members", f"{row.members:,}"
    yield "in the database", f"{counted(row.hot_messages, 'message')} with {hot_bytes:,} bytes"
    yield "in the archive", f"{counted(row.archived_messages, 'message')} with {row.archived_bytes:,} bytes"
    if row.border:
        yield "served from there", f"up to number {row.border}"
    yield "oldest", "no messages" if row.oldest is None else f"{second(row.oldest)} UTC"
    yield "legal holds", f"{row.holds} on the group" if row.holds else "none on the group"
    yield "overdue", _overdue(row, now) or "nothing"
