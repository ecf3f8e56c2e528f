"""What all commands share."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

config_option = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="TOML file; default: ./conclave.toml, /etc/conclave/config.toml, built-in defaults.",
)


@contextmanager
def one_line_errors(*expected: type[Exception]) -> Iterator[None]:
    """Turn what an operator can mend into lines on stderr and exit status 1."""
    try:
        yield
    except expected as error:
        for line in str(error).splitlines():
            click.echo(f"conclave: {line}", err=True)
        sys.exit(1)
