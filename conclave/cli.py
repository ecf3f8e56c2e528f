"""The command line: parses, then calls."""

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import click

from conclave import __version__
from conclave.clock import SystemClock
from conclave.config import ConfigError, load_config
from conclave.logs import configure_logging

_config_option = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="TOML file; default: ./conclave.toml, /etc/conclave/config.toml, built-in defaults.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="conclave")
def main() -> None:
    """Serve groups that forget on time."""
    os.umask(0o077)  # what lies under the data directory is the operator's alone


@main.command()
@_config_option
def serve(path: Path | None) -> None:
    """Serve clients, and clean up every cleanup_interval."""
    from conclave.server import ServeError, serve as run_server  # noqa: PLC0415 - other commands need no server

    configure_logging()
    with _one_line_errors(ConfigError, ServeError):
        run_server(load_config(path))


@main.group()
def cleanup() -> None:
    """Delete what is due."""


@cleanup.command("run")
@_config_option
def run_cleanup(path: Path | None) -> None:
    """Do one cleanup run now, and print what went and why."""
    from rich.console import Console  # noqa: PLC0415 - the server must not pay for it

    from spark import job, report  # noqa: PLC0415 - nor for this

    configure_logging()
    with (
        _one_line_errors(ConfigError, job.CleanupError),
        closing(job.Job(load_config(path), SystemClock())) as cleaning,
    ):
        done = cleaning.run()
    report.show(done, Console())
    if done.error:
        sys.exit(1)


@contextmanager
def _one_line_errors(*expected: type[Exception]) -> Iterator[None]:
    """Turn what an operator can mend into lines on stderr and exit status 1."""
    try:
        yield
    except expected as error:
        for line in str(error).splitlines():
            click.echo(f"conclave: {line}", err=True)
        sys.exit(1)
