"""Access to the configured store, for commands that run actions."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conclave.actions.command_runner import CommandRunner, CommandRunnerError
from conclave.cli.common import CliError, command_config, one_line_errors
from conclave.clock import SystemClock
from conclave.config.load import ConfigError
from conclave.errors import NotFoundError


@contextmanager
def open_store(path: Path | None, *expected: type[Exception]) -> Iterator[CommandRunner]:
    """Yield the runner of actions on the configured store. ``expected``: further errors to print as lines."""
    with one_line_errors(ConfigError, CommandRunnerError, NotFoundError, CliError, *expected):
        yield CommandRunner(command_config(path), SystemClock())
