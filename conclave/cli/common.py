"""What all commands share."""

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
"""The environment variable that names the configuration file where no option does."""

config_option = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path, readable=False),  # reading it tells more
    envvar=CONFIG_VARIABLE,
    help=f"TOML file; default: ${CONFIG_VARIABLE}, ./conclave.toml, /etc/conclave/config.toml, built-in defaults.",
)


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object; times in Unix seconds.")

MOST = 2**63 - 1
"""The greatest number that the database can hold."""

NUMBER = click.IntRange(1, MOST)
"""The number of a message, a hold or another thing that the database counts."""


class InputError(Exception):
    """The input is missing or cannot be used. The message is one line for the operator."""


class Seconds(click.ParamType[int]):
    """A duration such as 30d, as whole seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the seconds."""
        try:
            return parse_duration(value)
        except InvalidDurationError as error:
            self.fail(str(error), param, ctx)


class Name(click.ParamType[str]):
    """Text that can be stored: what is not UTF-8 is refused."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text."""
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail("it is not UTF-8", param, ctx)
        return text


def log_for_people() -> None:
    """Write the log in lines for people, also where it is no terminal."""
    configure_logging(LogConfig(format=CONSOLE))


def configured(path: Path | None, advise: Advise = lambda *_: None) -> Config:
    """Return the settings of a command, and have its log written for people.

    If no file is named (``path`` is None), say on stderr which one was found, and which database it leads to: another
    one than meant is noticed before anything else is. Raises ConfigError.
    """
    log_for_people()
    source = path or find_config()
    config = load_config(source, advise)
    if path is None:
        found = source.absolute() if source else f"{BUILT_IN}, as no file was found"
        click.echo(visible(f"conclave: configuration: {found}; database: {config.database}"), err=True)
    return config


@contextmanager
def orderly_end() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, so that nothing is left behind.

    A terminal that closes sends SIGHUP. A signal that is ignored, or handled already, stays so.
    """
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) == signal.SIG_DFL]

    def pass_over(_: int, __: FrameType | None) -> None:
        """Not SIG_IGN, which Python reports with a traceback if a signal has come just before it is set."""

    def end(number: int, _: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, pass_over)  # a second signal would break off what the first has begun
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
    """Print ``expected`` errors as lines on stderr, and exit with status 1.

    These are the errors that an operator can mend. What would deceive in them is made visible: they tell of names and
    paths.
    """
    try:
        yield
    except expected as error:
        for line in visible_lines(str(error).strip()).split("\n"):
            click.echo(f"conclave: {line}", err=True)
        sys.exit(1)


def require_owner(config: Config) -> None:
    """Raise InputError if root would leave files in the archive or the ledger that the server's user cannot use."""
    if owner := operator_identity.owner_not_root(config.database):
        raise InputError(
            f"{config.database}: belongs to {owner}, and the files that root makes here are not for {owner} to use:"
            f" run this as that user, as by sudo -u '{owner}'"
        )


def confirm(question: str) -> None:
    """Ask on the terminal; go on with yes, and abort otherwise. Raises InputError without a terminal."""
    if not sys.stdin.isatty():
        raise InputError("there is no terminal to ask on: use --yes to do it unasked")
    click.confirm(question, abort=True, err=True)
