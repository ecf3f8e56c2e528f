"""Options, parameter types and helpers that all commands share."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from conclave.config.load import BUILT_IN, Advise, find_config, load_config
from conclave.config.log import CONSOLE, LogConfig
from conclave.config.settings import Config
from conclave.logs.lines import visible, visible_lines
from conclave.logs.setup import configure_logging
from conclave.retention.durations import InvalidDurationError, parse_duration
from conclave.system import operator_identity

CONFIG_VARIABLE = "CONCLAVE_CONFIG"
"""The environment variable with the path of the configuration file."""

config_option = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path, readable=False),  # the error when reading it says more
    envvar=CONFIG_VARIABLE,
    help=f"TOML file; default: ${CONFIG_VARIABLE}, ./conclave.toml, /etc/conclave/config.toml, built-in defaults.",
)


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object; times in Unix seconds.")

MAX_NUMBER = 2**63 - 1
"""The largest integer that SQLite can store."""

NUMBER = click.IntRange(1, MAX_NUMBER)
"""The number of a message, hold or similar."""


class CliError(Exception):
    """The input is missing or invalid. The message is one line."""


class DurationParam(click.ParamType[int]):
    """A duration such as 30d, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the seconds."""
        try:
            return parse_duration(value)
        except InvalidDurationError as error:
            self.fail(str(error), param, ctx)


class TextParam(click.ParamType[str]):
    """Text in valid UTF-8."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text."""
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail("not valid UTF-8", param, ctx)
        return text


def use_console_log() -> None:
    """Log in human-readable lines, also without a terminal."""
    configure_logging(LogConfig(format=CONSOLE))


def command_config(path: Path | None, advise: Advise = lambda *_: None) -> Config:
    """Load the configuration of a command, and log in human-readable lines. Raises ConfigError.

    If ``path`` is None, print to stderr which file and database are used, to reveal a mistake early.
    """
    use_console_log()
    source = path or find_config()
    config = load_config(source, advise)
    if path is None:
        found = source.absolute() if source else f"{BUILT_IN} (no file found)"
        click.echo(visible(f"conclave: configuration: {found}; database: {config.database}"), err=True)
    return config


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end the block with a SystemExit, so that resources are cleaned up.

    A terminal that closes sends SIGHUP. Signals that are ignored or handled already are left alone.
    """
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) == signal.SIG_DFL]

    def ignore(_: int, __: FrameType | None) -> None:
        """Do nothing. SIG_IGN would cause a traceback for a signal that arrived just before."""

    def end(number: int, _: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, ignore)  # a second signal must not interrupt the cleanup
        sys.exit(128 + number)

    for each in numbers:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)


@contextmanager
def one_line_errors(*expected: type[Exception]) -> Iterator[None]:
    """Print ``expected`` errors as lines on stderr, with control characters made visible, and exit with status 1."""
    try:
        yield
    except expected as error:
        for line in visible_lines(str(error).strip()).split("\n"):
            click.echo(f"conclave: {line}", err=True)
        sys.exit(1)


def require_owner(config: Config) -> None:
    """Raise CliError if root would leave files that the server's user cannot use."""
    if owner := operator_identity.owner_not_root(config.database):
        raise CliError(
            f"{config.database}: belongs to {owner}, who could not use files created by root:"
            f" run this as that user, with sudo -u '{owner}'"
        )


def confirm(question: str) -> None:
    """Ask on the terminal; abort unless the answer is yes. Raises CliError without a terminal."""
    if not sys.stdin.isatty():
        raise CliError("no terminal for a confirmation: use --yes to skip it")
    click.confirm(question, abort=True, err=True)
