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
from conclave.cli.common import (
    CliError,
    TextParam,
    command_config,
    config_option,
    exit_on_signals,
    one_line_errors,
    require_owner,
)
from conclave.cli.tables import about, print_table, second, visible
from conclave.clock import SystemClock
from conclave.config.load import ConfigError
from conclave.retention.durations import duration_text
from conclave.retention.policy import KEEP
from conclave.store.archive.status import ArchiveOverdue
from conclave.store.engine.faults import StoreError
from spark import delta_jars, readiness
from spark.environment import RunEnvironment

MAX_SHOWN = 100
"""The most differences that are printed."""


@click.group()
def archive() -> None:
    """Inspect and verify the archive, or restore a group."""


@archive.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object; times and lifetimes in seconds.")
def status(path: Path | None, *, as_json: bool) -> None:
    """Print the contents of the archive, what is overdue, and the last moves. The server may be running."""
    with one_line_errors(ConfigError, StatusError, StoreError):
        found = read_status(command_config(path), SystemClock().now())
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
    """Read the whole archive and print differences from its index. Cleanup runs wait until it has finished."""
    with _run_environment(path) as engine, readiness.archive_at_rest(engine) as run:
        found = run.check()
    for line in found.differences[:MAX_SHOWN]:
        click.echo(visible(line))
    if more := len(found.differences[MAX_SHOWN:]):
        click.echo(f"and {more:,} more")
    read = f"{found.messages:,} messages with {found.body_bytes:,} bytes in {found.index_rows:,} rows of the index"
    if found.differences:
        click.echo(f"conclave: the archive is damaged; read: {read}", err=True)
        sys.exit(1)
    click.echo(f"the archive is intact: {read}" if found.index_rows else "nothing is archived")


@archive.command()
@config_option
@click.argument("group", metavar="GROUP", type=TextParam())
def restore(path: Path | None, group: str) -> None:
    """Move the messages of GROUP from the archive back into the database.

    GROUP is a name or an id; use the id for a deleted group. Clients are not affected.
    """
    with _run_environment(path) as engine:
        group_id = CommandRunner(engine.config, SystemClock()).read(lookup.group_id, group)
        if group_id is None:
            raise CliError(f"no such group: {group!r}; use the id for a deleted group")
        with readiness.archive_at_rest(engine) as run:
            count = run.restore(group_id, readiness.spare_bytes(engine))
    click.echo(f"{group}: restored {count:,} messages to the database; the next run removes them from the archive")


@archive.command("fetch-jars")
def fetch_jars() -> None:
    """Download the Java libraries that Spark needs for the archive, some 10 MB, and verify their SHA-256."""
    with one_line_errors(delta_jars.FetchError):
        if delta_jars.fault():
            delta_jars.fetch()
    click.echo(f"the archive's jars are in {delta_jars.TARGET}")


@contextmanager
def _run_environment(path: Path | None) -> Iterator[RunEnvironment]:
    """Yield the environment of a run for the configured archive. Expected errors are printed as lines."""
    with (
        exit_on_signals(),
        one_line_errors(ConfigError, CliError, CommandRunnerError, *readiness.EXPECTED),
    ):
        config = command_config(path)
        require_owner(config)
        with closing(RunEnvironment(config, SystemClock())) as engine:
            yield engine


def _show(found: Status, console: Console) -> None:
    if found.is_absent:
        click.echo("nothing has been archived yet")
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
    print_table(table, "nothing is archived")
    version = "cannot be read" if found.table_version is None else f"is at version {found.table_version}"
    lines = [f"{found.path}: {version}, readers need version {found.needed_version}", *_overdue(found.overdue)]
    if found.dead.since is not None:
        since = f"the first since {second(found.dead.since)}"
        lines.append(f"erased, space not reclaimed yet: {found.dead.messages:,} messages, {since}")
    if found.unerased:
        lines.append("replaced files may still be on disk; the next run removes them")
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
    return [f"due in the next run: {line}" for line in lines] or ["nothing is overdue"]
