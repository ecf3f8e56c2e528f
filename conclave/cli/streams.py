"""The standard streams of a command: none of their numbers is left for another file, and lost output is told."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

_INPUT, _OUTPUT, _ERRORS = range(3)


class OutputError(OSError):
    """The standard output does not take what is printed."""


class _Output(io.FileIO):
    """The standard output. It fails once; what is written afterwards goes nowhere, since Python flushes at the end."""

    def __init__(self) -> None:
        super().__init__(_OUTPUT, "wb", closefd=False)
        self._is_lost = False

    def write(self, data: Any, /) -> int:
        """Write ``data``; return how many bytes of it. Raises BrokenPipeError and OutputError."""
        if self._is_lost:
            return len(data)
        try:
            return super().write(data)
        except BrokenPipeError:
            self._is_lost = True  # the reader has had enough, as `head`: click ends the command silently
            raise
        except OSError as error:
            self._is_lost = True
            raise OutputError(error.errno, error.strerror) from error


@contextmanager
def in_order() -> Iterator[None]:
    """Open what is closed, and print an OutputError of the block as one line on stderr; exit with status 1 then."""
    _open_closed()
    _watch_output()
    try:
        yield
    except OutputError as error:
        with suppress(OSError):
            click.echo(
                f"conclave: standard output: {error.strerror}: what was to be printed is lost; what was done stays"
                " done",
                err=True,
            )
        sys.exit(1)


def _open_closed() -> None:
    """Open a standard stream that was closed on nothing at all.

    Otherwise its number would go to the next file that is opened, such as a lock or the ledger, and what Java and
    others print would be written into that.
    """
    for number in (_INPUT, _OUTPUT, _ERRORS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the least number that is free, which is this one
            os.set_inheritable(number, True)  # noqa: FBT003 - it has no name
    if sys.stdin is None:
        sys.stdin = open(_INPUT, encoding="utf-8", closefd=False)  # noqa: SIM115 - open as long as the process
    if sys.stdout is None:
        sys.stdout = open(_OUTPUT, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as above
    if sys.stderr is None:
        sys.stderr = open(_ERRORS, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as above


def _watch_output() -> None:
    """Have failures of the standard output told from those of other files; not of what replaces it in a test."""
    former = sys.stdout
    if former is sys.__stdout__ and isinstance(former, io.TextIOWrapper):
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Output()),
            encoding=former.encoding,
            errors=former.errors,
            line_buffering=former.line_buffering,
        )
