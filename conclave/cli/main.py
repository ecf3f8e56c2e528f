"""The command line: parses, then calls."""

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conclave import __version__
from conclave.cli.archive import archive
from conclave.cli.common import config_option, one_line_errors, orderly_end
from conclave.cli.users import user
from conclave.clock import SystemClock
from conclave.config.load import ConfigError, load_config
from conclave.logs import configure_logging, get_logger

if TYPE_CHECKING:
    from rich.console import Console

    from spark.job import Progress

log = get_logger(__name__)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="conclave")
def main() -> None:
    """Serve groups that forget on time."""
    os.umask(0o077)  # what lies under the data directory is the operator's alone


main.add_command(archive)
main.add_command(user)


@main.command()
@config_option
def serve(path: Path | None) -> None:
    """Serve clients, and clean up every cleanup_interval."""
    from conclave.server.run import ServeError, serve as run_server  # noqa: PLC0415 - other commands need no server

    configure_logging()
    with one_line_errors(ConfigError, ServeError):
        run_server(load_config(path, lambda name, means: log.warning("ambiguous_setting", setting=name, means=means)))


@main.group()
def cleanup() -> None:
    """Delete what is due."""


@cleanup.command("run")
@config_option
@click.option("--dry-run", is_flag=True, help="Only tell what would go, and touch nothing.")
@click.option(
    "--accept-clock", is_flag=True, help="Take the wall clock as right; what is stored ahead of it is brought back."
)
def run_cleanup(path: Path | None, *, dry_run: bool, accept_clock: bool) -> None:
    """Do one cleanup run now, and print what went and why."""
    from rich.console import Console  # noqa: PLC0415 - the server must not pay for it

    from spark import job, report  # noqa: PLC0415 - nor for this

    if dry_run and accept_clock:
        raise click.UsageError("--dry-run touches nothing, not even the clock guard")
    configure_logging()
    console = Console()
    with (
        orderly_end(),
        one_line_errors(ConfigError, job.CleanupError),
        closing(job.Job(load_config(path), SystemClock())) as cleaning,
    ):
        if dry_run:
            done = cleaning.dry_run()
        else:
            with _progress_bar(console) as progress:
                done = cleaning.run(accept_clock=accept_clock, progress=progress)
    report.show(done, console, dry=dry_run)
    if done.error:
        sys.exit(1)


@cleanup.command()
@config_option
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="How many runs.")
def history(path: Path | None, limit: int) -> None:
    """Print the last runs, the newest first."""
    from rich.console import Console  # noqa: PLC0415 - the server must not pay for it

    from conclave.store import database  # noqa: PLC0415 - nor the command line for what it does not use
    from conclave.store.faults import StoreError  # noqa: PLC0415 - as above
    from spark import report  # noqa: PLC0415 - as above

    with one_line_errors(ConfigError, StoreError):
        config = load_config(path)
        database.require_current(config.database)
        with closing(database.connect(config.database)) as connection:
            report.show_history(report.history(connection, limit), Console())


@contextmanager
def _progress_bar(console: "Console") -> Iterator["Progress | None"]:
    """Show a bar on a terminal while rows are deleted; elsewhere nothing, and nothing is counted for it."""
    from rich.progress import Progress as Bar  # noqa: PLC0415 - the server must not pay for it

    if not console.is_terminal:
        yield None
        return
    with Bar(console=console, transient=True) as bar:
        task = bar.add_task("deleting", total=None)
        yield lambda gone, total: bar.update(task, completed=gone, total=total)
