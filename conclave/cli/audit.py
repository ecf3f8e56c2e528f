"""The ``conclave audit`` command."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import click
from rich.table import Table

from conclave.actions.audit import list_last
from conclave.cli.common import Name, Seconds, config_option
from conclave.cli.opened_store import opened_store
from conclave.cli.tables import print_whole, second
from conclave.store.resources.audit import AuditEntry

_TIMES = ("added_at", "before", "expired_before")
"""Details that are Unix seconds, or an old one and a new one."""


@click.command()
@config_option
@click.option("--group", type=Name(), metavar="ID|NAME", help="Only entries about this group, deleted or not.")
@click.option("--user", type=Name(), metavar="ID|NAME", help="Only entries about this user, deleted or not.")
@click.option("--since", type=Seconds(), metavar="DURATION", help="Only entries of the last 30d, for example.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1_000_000), help="How many entries.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; times in Unix seconds.")
def audit(
    path: Path | None, group: str | None, user: str | None, since: int | None, limit: int, *, as_json: bool
) -> None:
    """Print who decided what, and when: policies, holds, accounts."""
    if group is not None and user is not None:
        raise click.UsageError("--group and --user exclude each other: an entry is about one of them")
    with opened_store(path) as outside:
        entries = outside.read(list_last, outside.context(), limit, since, group, user)
    if as_json:
        for each in entries:
            click.echo(json.dumps(_object(each)))
    else:
        _show(entries)


def _object(entry: AuditEntry) -> dict[str, Any]:
    return {
        "id": entry.audit_id,
        "at": entry.at,
        "actor": entry.actor,
        "action": entry.action,
        "subject_id": _id(entry.subject.subject_id) or None,
        "subject": entry.subject.name,
        "details": entry.details,
    }


def _show(entries: Sequence[AuditEntry]) -> None:
    table = Table("entry", "when (UTC)", "who", "what", "about", "id", "details")
    for each in entries:
        cells = each.actor, each.action, each.subject.name, _id(each.subject.subject_id), _details_text(each.details)
        table.add_row(str(each.audit_id), second(each.at), *cells)
    print_whole(table, "no entries")


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


def _id(subject_id: bytes) -> str:
    return str(UUID(bytes=subject_id)) if subject_id else ""
