"""The ``conclave cleanup`` commands."""

import json
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from conclave.cli import reports
from conclave.cli.common import (
    CliError,
    command_config,
    config_option,
    exit_on_signals,
    json_option,
    one_line_errors,
    require_owner,
)
from conclave.cli.purge import purge
from conclave.clock import SystemClock
from conclave.config.load import ConfigError
from conclave.config.settings import Config
from conclave.retention.jobs import schedule
from conclave.store.engine import schema, sqlite
from conclave.store.engine.faults import StoreError
from conclave.store.views import runs
from spark import readiness, run
from spark.environment import RunEnvironment
from spark.rehearsal import rehearse


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
    console = Console()
    with (
        exit_on_signals(),
        one_line_errors(ConfigError, CliError, *readiness.EXPECTED),
        closing(RunEnvironment(_own_config(path), SystemClock())) as engine,
    ):
        if dry_run:
            done = rehearse(engine)
        else:
            with reports.progress_bar(console, is_wanted=not as_json) as progress:
                done = run.clean_up(engine, accept_clock=accept_clock, progress=progress)
    if as_json:
        click.echo(json.dumps(reports.as_json(done, dry=dry_run)))
    else:
        reports.show(done, console, dry=dry_run)
    if done.error:
        sys.exit(1)


def _own_config(path: Path | None) -> Config:
    config = command_config(path)
    require_owner(config)
    return config


@cleanup.command()
@config_option
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="How many runs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; times in Unix seconds.")
def history(path: Path | None, limit: int, *, as_json: bool) -> None:
    """Print the last runs, newest first."""
    with one_line_errors(ConfigError, StoreError):
        config = command_config(path)
        schema.require_current(config.database)
        with closing(sqlite.connect(config.database)) as connection:
            listed = runs.last(connection, limit)
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
    with one_line_errors(ConfigError, StoreError):
        config = command_config(path)
        schema.require_current(config.database)
        with closing(sqlite.connect(config.database)) as connection:
            history = runs.last(connection, runs.HISTORY_ROWS)
        jobs = schedule(config.retention.purge_jobs, config.cleanup_interval)
        for each in runs.advices(history, jobs, SystemClock().read().wall):
            if as_json:
                values = asdict(each)
                for projection in values["projections"]:
                    projection["lies"] = projection.pop("max_delay")
                click.echo(json.dumps(values))
            else:
                reports.show_advice(each, Console())


cleanup.add_command(purge)
