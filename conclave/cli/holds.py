"""The ``conclave hold`` commands."""

import json
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import click
from rich.table import Table

from conclave.actions import holds
from conclave.actions.holds import MAX_REASON_LENGTH, Hold
from conclave.cli.common import NUMBER, CliError, TextParam, config_option
from conclave.cli.open_store import open_store
from conclave.cli.tables import print_table, second, visible
from conclave.system import operator_identity


@click.group()
def hold() -> None:
    """Manage legal holds, which prevent messages from being erased.

    A hold covers all past and future messages of a group, or of a user in all groups, commits included: in the database
    and in the archive, also after the group or account is deleted. Expired messages stay hidden from clients. It does
    not cover key packages, welcomes, group info, invites and sessions.
    """


@hold.command()
@config_option
@click.option("--group", type=TextParam(), metavar="ID|NAME", help="Hold the messages of this group (id if deleted).")
@click.option("--user", type=TextParam(), metavar="ID|NAME", help="Hold the messages of this user (id if deleted).")
@click.option("--reason", type=TextParam(), required=True, metavar="TEXT", help="The reason, stored in the audit log.")
@click.option("--no-wait", is_flag=True, help="Do not wait for a running cleanup.")
def add(path: Path | None, group: str | None, user: str | None, reason: str, *, no_wait: bool) -> None:
    """Add a hold, and print its id.

    It takes effect at once, but does not restore erased messages. With an archive, the command waits for a running
    cleanup, which may still erase what it has planned.
    """
    if (group is None) == (user is None):
        raise click.UsageError("give either --group or --user")
    with open_store(path) as outside:
        reason = _checked(reason)
        found = (
            outside.read(holds.find_group, group) if group is not None else outside.read(holds.find_user, user or "")
        )
        added = outside.write(holds.add, outside.context(), operator_identity.current(), found, reason)
        click.echo(f"hold {added.hold_id}: covers {_described(added)}")
        if not found.is_certain:
            click.echo("the user has no messages in the database; the archive may have commits", err=True)
        if not no_wait:
            outside.wait_for_run(lambda: click.echo(f"hold {added.hold_id}: {_WAITING}", err=True))


_WAITING = (
    "in force; waiting for the running cleanup, which may still erase planned messages from the archive"
    " (the hold stays if you interrupt this)"
)


@hold.command("list")
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; times in Unix seconds.")
def list_holds(path: Path | None, *, as_json: bool) -> None:
    """List the holds in force, oldest first."""
    with open_store(path) as outside:
        listed = outside.read(holds.list_all)
    if not as_json:
        _show(listed)
        return
    for each in listed:
        values = {"id": each.hold_id, "covers": each.covers, "subject_id": str(UUID(bytes=each.subject_id))}
        values |= {"subject": each.name, "reason": each.reason, "added_by": each.added_by}
        click.echo(json.dumps(values | {"added_at": each.added_at}))


@hold.command(short_help="Release a hold.")
@config_option
@click.argument("hold_id", metavar="ID", type=NUMBER)
def release(path: Path | None, hold_id: int) -> None:
    """Release a hold; what no other one covers is erased by the next run, if it is due."""
    with open_store(path) as outside:
        released = outside.write(holds.release, outside.context(), operator_identity.current(), hold_id)
    click.echo(f"hold {hold_id}: released; it covered {_described(released)}")


def _checked(reason: str) -> str:
    reason = reason.strip()
    if not 1 <= len(reason) <= MAX_REASON_LENGTH:
        raise CliError(f"the reason must have 1 to {MAX_REASON_LENGTH:,} characters")
    return reason


def _described(hold: Hold) -> str:
    of = "all messages of the group" if hold.covers == "group" else "all messages sent by the user"
    subject = UUID(bytes=hold.subject_id)
    return f"{of} {visible(hold.name)} ({subject})" if hold.name else f"{of} {subject}, which is deleted"


def _show(listed: Sequence[Hold]) -> None:
    table = Table("hold", "covers", "name", "id", "reason", "added by", "added (UTC)")
    for each in listed:
        cells = each.covers, each.name, str(UUID(bytes=each.subject_id)), each.reason, each.added_by
        table.add_row(str(each.hold_id), *cells, second(each.added_at))
    print_table(table, "no legal holds")
