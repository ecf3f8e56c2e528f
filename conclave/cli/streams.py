"""Checks the standard streams of a command: closed ones are opened, and failed output is reported."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

_INPUT, _OUTPUT, _ERRORS = range(3)


class OutputError(OSError):
    """Writing to the standard output failed."""


class _Output(io.FileIO):
    """The standard output. After a failure, further output is discarded, since Python flushes at exit."""

    def __init__(self) -> None:
        super().__init__(_OUTPUT, "wb", closefd=False)
        self._is_lost = False

    def write(self, data: Any, /) -> int:
        """Write ``data``; return the number of bytes written. Raises BrokenPipeError and OutputError."""
        if self._is_lost:
            return len(data)
        try:
            return super().write(data)
        except BrokenPipeError:
            self._is_lost = True  # a reader such as `head` has finished: click exits silently
            raise
        except OSError as error:
            self._is_lost = True
            raise OutputError(error.errno, error.strerror) from error


@contextmanager
def checked() -> Iterator[None]:
    """Open closed streams. Print an OutputError of the block as one line on stderr, and exit with status 1."""
    _open_closed()
    _watch_output()
    try:
        yield
    except OutputError as error:
        with suppress(OSError):
            click.echo(
                f"conclave: standard output: {error.strerror}: output was lost, but the command was executed",
                err=True,
            )
        sys.exit(1)


def _open_closed() -> None:
    """Open closed standard streams on /dev/null.

    Otherwise their numbers would be reused for the next files, such as a lock or the ledger, into which Java and others
    would then print.
    """
    for number in (_INPUT, _OUTPUT, _ERRORS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(number, True)  # noqa: FBT003 - it has no name
    if sys.stdin is None:
        sys.stdin = open(_INPUT, encoding="utf-8", closefd=False)  # noqa: SIM115 - open as long as the process
    if sys.stdout is None:
        sys.stdout = open(_OUTPUT, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as above
    if sys.stderr is None:
        sys.stderr = open(_ERRORS, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as above


def _watch_output() -> None:
    """Distinguish failures of the standard output from those of other files, except where a test has replaced it."""
    former = sys.stdout
    if former is sys.__stdout__ and isinstance(former, io.TextIOWrapper):
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Output()),
            encoding=former.encoding,
            errors=former.errors,
            line_buffering=former.line_buffering,
        )
