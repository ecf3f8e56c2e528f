"""The store that is configured, for commands that run actions on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conclave.actions.command_runner import CommandRunner, CommandRunnerError
from conclave.cli.common import InputError, configured, one_line_errors
from conclave.clock import SystemClock
from conclave.config.load import ConfigError
from conclave.errors import NotFoundError


@contextmanager
def opened_store(path: Path | None, *expected: type[Exception]) -> Iterator[CommandRunner]:
    """Yield what runs actions on the configured store. ``expected``: further errors that become lines.

    All that an operator can mend do: see ``one_line_errors``.
    """
    with one_line_errors(ConfigError, CommandRunnerError, NotFoundError, InputError, *expected):
        yield CommandRunner(configured(path), SystemClock())
