"""The ``conclave serve`` command."""

from pathlib import Path

import click

from conclave.cli.common import config_option, one_line_errors
from conclave.config.doubts import doubts
from conclave.config.load import ConfigError, load_config
from conclave.logs import configure_logging, get_logger
from conclave.server.run import ServeError, serve as run_server

log = get_logger(__name__)


@click.command()
@config_option
@click.option(
    "--accept-policy-change",
    "accepts_change",
    is_flag=True,
    help="Start even if the configuration hides more than a tenth of all messages that are shown now.",
)
def serve(path: Path | None, *, accepts_change: bool) -> None:
    """Serve clients, and clean up every cleanup_interval."""
    configure_logging()
    with one_line_errors(ConfigError, ServeError):
        config = load_config(path, lambda name, means: log.warning("ambiguous_setting", setting=name, means=means))
        for doubt in doubts(config):
            log.warning("doubtful_setting", **doubt._asdict())
        run_server(config, accepts_change=accepts_change)
