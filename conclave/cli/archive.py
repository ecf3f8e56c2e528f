"""The ``conclave archive`` commands."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from conclave.actions import lookup
from conclave.actions.command_runner import CommandRunner, CommandRunnerError
from conclave.archive.status import ClassMonth, Status, StatusError, read_status
from conclave.cli.common import InputError, Name, config_option, configured, one_line_errors, orderly_end, require_owner
from conclave.cli.tables import about, print_whole, second, visible
from conclave.clock import SystemClock
from conclave.config.load import ConfigError
from conclave.retention.durations import duration_text
from conclave.retention.policy import KEEP
from conclave.store.archive.status import ArchiveOverdue
from conclave.store.engine.faults import StoreError
from spark import archive_commands, delta_jars, readiness
from spark.environment import RunEnvironment

SHOWN = 100
"""At most 100 differences are printed."""


@click.group()
def archive() -> None:
    """Check the archive of older messages, or restore a group."""


@archive.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object; times and lifetimes in seconds.")
def status(path: Path | None, *, as_json: bool) -> None:
    """Print what is archived, what is overdue there, and what moved last; while the server runs or not."""
    with one_line_errors(ConfigError, StatusError, StoreError):
        found = read_status(configured(path), SystemClock().now())
    if as_json:
        click.echo(json.dumps(asdict(found)))
    else:
        _show(found, Console())
    if found.fault:
        click.echo(f"conclave: {visible(found.fault)}", err=True)
        sys.exit(1)


@archive.command()
@config_option
def verify(path: Path | None) -> None:
    """Read everything in the archive, and print what is not as it was archived. No run begins meanwhile."""
    with _engine(path) as engine:
        found = archive_commands.verify_archive(engine)
    for line in found.differences[:SHOWN]:
        click.echo(visible(line))
    if more := len(found.differences[SHOWN:]):
        click.echo(f"and {more:,} more")
    read = f"{found.messages:,} messages with {found.body_bytes:,} bytes in {found.index_rows:,} rows of the index"
    if found.differences:
        click.echo(f"conclave: the archive is not as it should be; read: {read}", err=True)
        sys.exit(1)
    click.echo(f"the archive is whole: {read}" if found.index_rows else "nothing is archived")


@archive.command()
@config_option
@click.argument("group", metavar="GROUP", type=Name())
def restore(path: Path | None, group: str) -> None:
    """Take the messages of GROUP back from the archive into the database. Clients notice nothing.

    GROUP is a name or an id; use the id for a deleted group.
    """
    with _engine(path) as engine:
        group_id = CommandRunner(engine.config, SystemClock()).read(lookup.group_id, group)
        if group_id is None:
            raise InputError(f"no such group: {group!r}; use the id for a deleted group")
        count = archive_commands.restore_archived(engine, group_id)
    click.echo(f"{group}: {count:,} messages are in the database again; the next run removes them from the archive")


@archive.command("fetch-jars")
def fetch_jars() -> None:
    """Fetch what Spark needs for the archive, by Java, once: some 10 MB, each file compared with its known SHA-256."""
    with one_line_errors(delta_jars.FetchError):
        if delta_jars.fault():
            delta_jars.fetch()
    click.echo(f"the archive's jars are there: {delta_jars.TARGET}")


@contextmanager
def _engine(path: Path | None) -> Iterator[RunEnvironment]:
    """Yield an engine for the configured archive. Expected errors become lines for the operator."""
    with (
        orderly_end(),
        one_line_errors(ConfigError, InputError, CommandRunnerError, *readiness.EXPECTED),
    ):
        config = configured(path)
        require_owner(config)
        with closing(RunEnvironment(config, SystemClock())) as engine:
            yield engine


def _show(found: Status, console: Console) -> None:
    if found.is_none:
        click.echo("nothing was ever archived")
        return
    table = Table("kept for", "month", title="Archive", show_footer=True)
    totals = [sum(each) for each in zip(*(_amounts(share) for share in found.shares), strict=True)] or [0] * 4
    for name, total in zip(("messages", "body bytes", "files", "bytes on disk"), totals, strict=True):
        table.add_column(name, f"{total:,}", justify="right")
    table.columns[0].footer = "total"
    for share in found.shares:
        table.add_row(
            "ever" if share.lifetime == KEEP else duration_text(share.lifetime),
            share.month,
            *(f"{each:,}" for each in _amounts(share)),
        )
    print_whole(table, "nothing is archived")
    version = "cannot be read" if found.table_version is None else f"is at version {found.table_version}"
    lines = [f"{found.path}: {version}, readers need {found.needed_version}", *_overdue(found.overdue)]
    if found.dead.since is not None:
        since = f"the first since {second(found.dead.since)}"
        lines.append(f"erased, and taking space until it is reclaimed: {found.dead.messages:,} messages, {since}")
    if found.unerased:
        lines.append("replaced files may still be on disk: the next run removes them")
    for move in found.moves:
        ended = "under way" if move.finished_at is None else f"ended {second(move.finished_at)}"
        lines.append(f"move {move.batch}: {move.messages:,} messages, begun {second(move.fixed_at)}, {ended}")
    for line in lines:
        console.print(visible(line), soft_wrap=True, markup=False, highlight=False)


def _amounts(share: ClassMonth) -> tuple[int, int, int, int]:
    return share.messages, share.body_bytes, share.files, share.disk_bytes


def _overdue(due: ArchiveOverdue) -> list[str]:
    lines = []
    if due.expired_parts:
        lines.append(f"expired messages in {due.expired_parts:,} parts, the oldest by {about(due.expired_seconds)}")
    if due.deleted_groups:
        lines.append(f"{due.deleted_groups:,} deleted groups, the first {about(due.deleted_groups_seconds)} ago")
    if due.deleted_accounts:
        ago = about(due.deleted_accounts_seconds)
        lines.append(f"messages of {due.deleted_accounts:,} deleted accounts, the first deleted {ago} ago")
    if due.restored_messages:
        lines.append(f"{due.restored_messages:,} restored messages")
    if due.taken_back_messages:
        lines.append(f"up to {due.taken_back_messages:,} messages that were taken back")
    return [f"the next run takes: {line}" for line in lines] or ["nothing is overdue"]
