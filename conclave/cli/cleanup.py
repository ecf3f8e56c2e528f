"""The ``conclave cleanup`` commands."""

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
from conclave.actions.command_runner import CommandRunner
from conclave.actions.context import Context
from conclave.actions.purges import PurgePlan
from conclave.archive import queries
from conclave.archive.faults import UnreadableArchiveError
from conclave.cli import reports
from conclave.cli.common import (
    CliError,
    TextParam,
    command_config,
    config_option,
    confirm,
    exit_on_signals,
    json_option,
    one_line_errors,
    require_owner,
)
from conclave.cli.open_store import open_store
from conclave.cli.tables import counted, second
from conclave.clock import SystemClock
from conclave.config.load import ConfigError
from conclave.config.settings import Config
from conclave.errors import UntrustedClockError
from conclave.retention.durations import DURATION, InvalidDurationError, parse_duration
from conclave.retention.hidden import NOTHING, MessageTotals
from conclave.retention.jobs import schedule
from conclave.store.views import runs
from conclave.system import operator_identity
from spark import readiness, run
from spark.environment import CleanupError, RunEnvironment
from spark.rehearsal import rehearse
from spark.report import Report


@click.group()
def cleanup() -> None:
    """Run cleanup, or show its history."""


@cleanup.command("run")
@config_option
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, without changing anything.")
@click.option(
    "--accept-clock",
    is_flag=True,
    help="Accept the wall clock as correct; times in the future become the current time.",
)
@json_option
def run_cleanup(path: Path | None, *, dry_run: bool, accept_clock: bool, as_json: bool) -> None:
    """Run cleanup now, and print what was deleted and why."""
    if dry_run and accept_clock:
        raise click.UsageError("--dry-run and --accept-clock exclude each other")
    with one_line_errors(ConfigError, CliError, *readiness.EXPECTED):
        config = command_config(path)
        require_owner(config)
        done = _clean_up(config, shows=not as_json, dry=dry_run, accept_clock=accept_clock)
    if as_json:
        click.echo(json.dumps(reports.as_json(done, dry=dry_run)))
    if done.error:
        sys.exit(1)


def _clean_up(config: Config, *, shows: bool, dry: bool = False, accept_clock: bool = False) -> Report:
    """Do a run, or a dry run. ``shows``: print the result."""
    console = Console()
    with exit_on_signals(), closing(RunEnvironment(config, SystemClock())) as engine:
        if dry:
            done = rehearse(engine)
        else:
            with reports.progress_bar(console, is_wanted=shows) as progress:
                done = run.clean_up(engine, accept_clock=accept_clock, progress=progress)
    if shows:
        reports.show(done, console, dry=dry)
    return done


@cleanup.command()
@config_option
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="How many runs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; times in Unix seconds.")
def history(path: Path | None, limit: int, *, as_json: bool) -> None:
    """Print the last runs, newest first."""
    with open_store(path) as outside:
        listed = outside.read(runs.last, limit)
    if as_json:
        for each in listed:
            click.echo(json.dumps(asdict(each)))
    else:
        reports.show_history(listed, Console())


@cleanup.command(short_help="Recommend a cleanup interval.")
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for each job; times in seconds.")
def advise(path: Path | None, *, as_json: bool) -> None:
    """Recommend a cleanup interval: the cost of past runs, and estimates for other intervals.

    It needs some days of history. Nothing is changed.
    """
    with open_store(path) as outside:
        history = outside.read(runs.last, runs.HISTORY_ROWS)
    jobs = schedule(outside.config.retention.purge_jobs, outside.config.cleanup_interval)
    for each in runs.advices(history, jobs, SystemClock().read().wall):
        if as_json:
            values = asdict(each)
            for projection in values["projections"]:
                projection["lies"] = projection.pop("max_delay")
            click.echo(json.dumps(values))
        else:
            reports.show_advice(each, Console())


class _ClockError(Exception):
    """The clock guard does not trust the clock. The message is one line."""


@cleanup.command(short_help="Hide and erase a group's older messages.")
@config_option
@click.option("--group", required=True, type=TextParam(), metavar="ID|NAME", help="The group.")
@click.option(
    "--before",
    required=True,
    metavar="TIME",
    help="2026-01-31, 2026-01-31T12:00:00 (UTC by default), or an age such as 30d.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show what would be purged, without changing anything.")
@click.option("--no-run", is_flag=True, help="Only hide the messages; the next cleanup run erases them.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; needs --yes or --dry-run.")
def purge(path: Path | None, group: str, before: str, *, yes: bool, dry_run: bool, no_run: bool, as_json: bool) -> None:
    """Hide a group's messages from before a time, permanently, and run cleanup to erase them.

    Messages under a legal hold or a minimum lifetime are hidden too, and erased later. The cleanup run covers all
    groups.
    """
    if as_json and not (yes or dry_run):
        raise click.UsageError("--json needs --yes or --dry-run")
    with open_store(path, _ClockError, CleanupError) as outside:
        config = outside.config
        if not dry_run and not no_run:
            require_owner(config)
        context = outside.context()
        at = _parse_before(before, context.now())
        planned = outside.read(purges.plan, context, group, at)
        archived, unread = _archived(config, planned)
        if not as_json:
            _show(planned, archived, unread, at)
        if not dry_run:
            _hide(outside, context, planned, at, asks=not yes)
            if not as_json:
                name = planned.group.group_name
                click.echo(f"{name}: messages from before {second(at)} UTC are hidden permanently")
        done = None if dry_run or no_run else _clean_up(config, shows=not as_json)
    if as_json:
        values = {"dry_run": dry_run, "run": done.to_mapping() if done else None}
        click.echo(json.dumps(_object(planned, archived, unread, at) | values))
    if (dry_run and unread) or (done and done.error):
        sys.exit(1)


def _hide(outside: CommandRunner, context: Context, planned: PurgePlan, before: int, *, asks: bool) -> None:
    """Hide the planned messages, after confirmation. Raises _ClockError and CliError."""
    if fault := outside.write(purges.clock_fault, context):
        raise _ClockError(_refusal(fault))
    group = planned.group
    if asks:
        confirm(f"Hide these messages of {group.group_name} permanently, and erase them?")
    try:
        outside.write(purges.purge, context, operator_identity.current(), group.group_id, before)
    except UntrustedClockError as error:  # detected during the confirmation
        raise _ClockError(_refusal(error.fault)) from error


def _refusal(fault: str) -> str:
    return f"{fault}: correct the clock and accept it with `conclave cleanup run --accept-clock` first"


def _parse_before(text: str, now: int) -> int:
    """Parse ``text`` as a time or an age into a Unix second, rounded down. Raises CliError, also for the future."""
    try:
        if DURATION.fullmatch(text):
            return max(0, now - parse_duration(text))
        found = datetime.fromisoformat(text)
        at = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() // 1
    except (InvalidDurationError, OverflowError) as error:
        raise CliError(f"--before: {error}") from error
    except ValueError as error:
        raise CliError(
            f"--before: {text!r} is not a date (2026-01-31), a date and time (2026-01-31T12:00:00) or a duration (30d)"
        ) from error
    if at > now:
        raise CliError(f"--before: {text} is in the future")
    return max(0, int(at))


def _archived(config: Config, planned: PurgePlan) -> tuple[MessageTotals, str]:
    """Return what would be purged from the archive; and why it could not be counted, or "".

    A failure here must not prevent hiding.
    """
    try:
        return queries.count(config, planned.impact.archive_count), ""
    except UnreadableArchiveError as error:
        return NOTHING, str(error)


def _show(planned: PurgePlan, archived: MessageTotals, unread: str, before: int) -> None:
    group = planned.group
    click.echo(f"{group.group_name}, before {second(before)} UTC:")
    for place, amount in (("in the database", planned.impact.known), ("in the archive", archived)):
        text = f"  {place}: {counted(amount.messages, 'message')} with {amount.body_bytes:,} bytes"
        if amount.messages:
            text += f", from {second(amount.oldest)} to {second(amount.newest)}"
        if place == "in the archive" and unread:
            text = f"  {place}: cannot be counted: {unread}"
        click.echo(text)
    if held := planned.impact.known.held + archived.held:
        click.echo(f"  {held:,} under a legal hold: hidden, but not erased until its release")
    if young := planned.impact.known.young + archived.young:
        until = "they are old enough (min_lifetime)" if planned.group.policy.erases else "retention.enabled is true"
        click.echo(f"  {young:,} hidden, but not erased until {until}")
    if kept := planned.kept_commits:
        click.echo(f"  {kept:,} further commits stay until all members have fetched them (retain_commits)")


def _object(planned: PurgePlan, archived: MessageTotals, unread: str, before: int) -> dict[str, Any]:
    """Return the plan for JSON. ``unread``: why the archive could not be counted, or ""."""
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
