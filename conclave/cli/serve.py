"""The ``conclave serve`` command."""

from pathlib import Path

import click

from conclave.cli.common import config_option, one_line_errors
from conclave.config.load import ConfigError, find_config, load_config
from conclave.logs.setup import configure_logging, get_logger
from conclave.server.run import ServeError, serve as run_server
from conclave.system.signals import Hangups

log = get_logger(__name__)


@click.command()
@config_option
@click.option(
    "--accept-policy-change",
    "accepts_change",
    is_flag=True,
    help="Start even if the configuration hides more than a tenth of all visible messages.",
)
@click.option(
    "--accept-older-vault",
    "accepts_older",
    is_flag=True,
    help="Start with a vault that is damaged or older than the database: messages without keys are lost.",
)
def serve(path: Path | None, *, accepts_change: bool, accepts_older: bool) -> None:
    """Run the server."""
    hangups = Hangups()
    ambiguous: list[tuple[str, str]] = []
    with one_line_errors(ConfigError, ServeError):
        source = path or find_config()
        config = load_config(source, lambda *advice: ambiguous.append(advice))
        configure_logging(config.log)
        for name, means in ambiguous:
            log.warning("ambiguous_setting", setting=name, means=means)
        accepted = {"accepts_change": accepts_change, "accepts_older": accepts_older}
        run_server(config, source.absolute() if source else None, hangups, **accepted)
