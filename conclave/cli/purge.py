"""The ``conclave cleanup purge`` command."""

import json
import sys
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import click
from rich.console import Console

from conclave.actions import purges
from conclave.actions.command_runner import CommandRunner, CommandRunnerError
from conclave.actions.context import Context
from conclave.actions.purges import PurgePlan
from conclave.archive.tally import UnreadableError, count
from conclave.cli import reports
from conclave.cli.common import (
    InputError,
    Name,
    config_option,
    configured,
    confirm,
    one_line_errors,
    orderly_end,
    require_owner,
)
from conclave.cli.tables import counted, second
from conclave.clock import SystemClock
from conclave.config.load import ConfigError
from conclave.config.settings import Config
from conclave.errors import NotFoundError, UntrustedClockError
from conclave.retention.durations import DURATION, InvalidDurationError, parse_duration
from conclave.retention.hidden import NOTHING, MessageTotals
from conclave.system import operator_identity
from spark import run
from spark.environment import CleanupError, RunEnvironment
from spark.report import Report


class _ClockWrongError(Exception):
    """The clock guard is red. The message is one line for the operator."""


@click.command()
@config_option
@click.option("--group", required=True, type=Name(), metavar="ID|NAME", help="The group.")
@click.option(
    "--before",
    required=True,
    metavar="TIME",
    help="2026-01-31, 2026-01-31T12:00:00 (UTC unless it says otherwise), or a duration ago, as 30d.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only print what would go, and touch nothing.")
@click.option("--no-run", is_flag=True, help="Only hide; the next cleanup run erases.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; needs --yes or --dry-run.")
def purge(path: Path | None, group: str, before: str, *, yes: bool, dry_run: bool, no_run: bool, as_json: bool) -> None:
    """Hide what a group has from before a time, for ever, and erase it by a cleanup run.

    Messages that a legal hold covers, or that have not reached their least lifetime, are hidden too, and erased once
    that is over. The run erases all that is due, in all groups.
    """
    if as_json and not (yes or dry_run):
        raise click.UsageError("--json asks nothing: it needs --yes or --dry-run")
    with one_line_errors(ConfigError, CommandRunnerError, NotFoundError, InputError, _ClockWrongError, CleanupError):
        config = configured(path)
        if not dry_run and not no_run:
            require_owner(config)
        outside = CommandRunner(config, SystemClock())
        context = outside.context()
        at = _moment(before, context.now())
        planned = outside.read(purges.plan, context, group, at)
        archived, unread = _archived(config, planned)
        if not as_json:
            _show(planned, archived, unread, at)
        if not dry_run:
            _hide(outside, context, planned, at, asks=not yes)
            if not as_json:
                name = planned.group.group_name
                click.echo(f"{name}: what was created before {second(at)} UTC is hidden for ever")
        done = None if dry_run or no_run else _erase(config, shows=not as_json)
    if as_json:
        values = {"dry_run": dry_run, "run": done.to_mapping() if done else None}
        click.echo(json.dumps(_object(planned, archived, unread, at) | values))
    if (dry_run and unread) or (done and done.error):
        sys.exit(1)


def _hide(outside: CommandRunner, context: Context, planned: PurgePlan, before: int, *, asks: bool) -> None:
    """Hide what was planned, once the operator has said yes. Raises _ClockWrongError and InputError."""
    if fault := outside.write(purges.clock_fault, context):
        raise _ClockWrongError(_refusal(fault))
    group = planned.group
    if asks:
        confirm(f"Hide these messages of {group.group_name} for ever, and erase them?")
    try:
        outside.write(purges.purge, context, operator_identity.current(), group.group_id, before)
    except UntrustedClockError as error:  # found wrong while the operator was asked
        raise _ClockWrongError(_refusal(error.fault)) from error


def _refusal(fault: str) -> str:
    return f"{fault}: nothing is purged until the clock is right and accepted by `conclave cleanup run --accept-clock`"


def _moment(text: str, now: int) -> int:
    """Return the Unix second that ``text`` names, rounded down. Raises InputError, also if it is after ``now``."""
    try:
        if DURATION.fullmatch(text):
            return max(0, now - parse_duration(text))
        found = datetime.fromisoformat(text)
        at = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() // 1
    except (InvalidDurationError, OverflowError) as error:
        raise InputError(f"--before: {error}") from error
    except ValueError as error:
        raise InputError(
            f"--before: {text!r} is neither a date (2026-01-31), a date and time (2026-01-31T12:00:00) nor a duration"
            " (30d)"
        ) from error
    if at > now:
        raise InputError(f"--before: {text} is in the future")
    return max(0, int(at))


def _archived(config: Config, planned: PurgePlan) -> tuple[MessageTotals, str]:
    """Return what would go from the archive; and why it could not be counted, "" if it could.

    That must not keep anything from being hidden.
    """
    try:
        return count(config, planned.impact.archive_count), ""
    except UnreadableError as error:
        return NOTHING, str(error)


def _show(planned: PurgePlan, archived: MessageTotals, unread: str, before: int) -> None:
    group = planned.group
    click.echo(f"{group.group_name}, created before {second(before)} UTC:")
    for place, amount in (("in the database", planned.impact.known), ("in the archive", archived)):
        text = f"  {place}: {counted(amount.messages, 'message')} with {amount.body_bytes:,} bytes"
        if amount.messages:
            text += f", the oldest of {second(amount.oldest)}, the newest of {second(amount.newest)}"
        if place == "in the archive" and unread:
            text = f"  {place}: could not be counted: {unread}"
        click.echo(text)
    if held := planned.impact.known.held + archived.held:
        click.echo(f"  {held:,} of these are under a legal hold: hidden, but not erased until it is released")
    if young := planned.impact.known.young + archived.young:
        until = "they are old enough (min_lifetime)" if planned.group.policy.erases else "retention.enabled is true"
        click.echo(f"  {young:,} of these are hidden, but not erased until {until}")
    if kept := planned.kept_commits:
        click.echo(f"  beside these, {kept:,} commits stay until every member has fetched them (retain_commits)")


def _object(planned: PurgePlan, archived: MessageTotals, unread: str, before: int) -> dict[str, Any]:
    """Return what JSON tells of the plan. ``unread``: why the archive could not be counted, "" if it could."""
    group = planned.group
    return {
        "group_id": str(UUID(bytes=group.group_id)),
        "group": group.group_name,
        "before": before,
        "database": asdict(planned.impact.known),
        "archive": asdict(archived),
        "archive_fault": unread,
        "kept_commits": planned.kept_commits,
    }


def _erase(config: Config, *, shows: bool) -> Report:
    """Do a cleanup run, as `conclave cleanup run` does. ``shows``: whether to print what it does."""
    console = Console()
    with (
        orderly_end(),
        closing(RunEnvironment(config, SystemClock())) as engine,
        reports.progress_bar(console, is_wanted=shows) as progress,
    ):
        done = run.clean_up(engine, progress=progress)
    if shows:
        reports.show(done, console)
    return done
