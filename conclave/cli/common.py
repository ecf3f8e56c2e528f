"""What all commands share."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

config_option = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="TOML file; default: ./conclave.toml, /etc/conclave/config.toml, built-in defaults.",
)


@contextmanager
def orderly_end() -> Iterator[None]:
    """Have SIGTERM, and SIGHUP of a terminal that closes, end the block as Ctrl-C does: nothing is left behind."""
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) == signal.SIG_DFL]

    def end(number: int, _: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)  # a second one would break off what the first has begun
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
    """Turn what an operator can mend into lines on stderr and exit status 1."""
    try:
        yield
    except expected as error:
        for line in str(error).splitlines():
            click.echo(f"conclave: {line}", err=True)
        sys.exit(1)
