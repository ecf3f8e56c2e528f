"""The command that serves: parses, then calls."""

from pathlib import Path

import click

from conclave.cli.common import config_option, one_line_errors
from conclave.config.load import ConfigError, load_config
from conclave.logs import configure_logging, get_logger
from conclave.server.run import ServeError, serve as run_server

log = get_logger(__name__)


@click.command()
@config_option
def serve(path: Path | None) -> None:
    """Serve clients, and clean up every cleanup_interval."""
    configure_logging()
    with one_line_errors(ConfigError, ServeError):
        run_server(load_config(path, lambda name, means: log.warning("ambiguous_setting", setting=name, means=means)))
