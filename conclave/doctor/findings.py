"""What was found, and what to do about it: one line each."""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from conclave.store.engine.faults import StoreError


class Level(StrEnum):
    """How bad a finding is. Only WRONG makes the command fail."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


class Finding(NamedTuple):
    """What was looked at, what was found, and the remedy, "" where none is needed."""

    about: str
    level: Level
    says: str
    remedy: str = ""


Check = Callable[[], Iterable[Finding]]


def ok(about: str, says: str) -> Finding:
    """Return that something is as it should be."""
    return Finding(about, Level.OK, says)


def note(about: str, says: str, remedy: str) -> Finding:
    """Return that something is worth a look."""
    return Finding(about, Level.NOTE, says, remedy)


def wrong(about: str, says: str, remedy: str) -> Finding:
    """Return that something does not work, or does harm."""
    return Finding(about, Level.WRONG, says, remedy)


def run_check(about: str, check: Check) -> Iterator[Finding]:
    """Yield what a check finds. One that cannot be done is a finding too, and the others go on."""
    try:
        yield from list(check())
    except (OSError, StoreError) as error:
        yield wrong(about, f"cannot be looked at: {error}", "see what the line says, as the server's user")
