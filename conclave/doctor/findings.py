"""Findings with their remedies."""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from conclave.store.engine.faults import StoreError


class Level(StrEnum):
    """The severity of a finding. Only WRONG makes the command fail."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


class Finding(NamedTuple):
    """A finding about the subject ``about``. ``remedy``: "" if nothing has to be done."""

    about: str
    level: Level
    says: str
    remedy: str = ""


Check = Callable[[], Iterable[Finding]]


def ok(about: str, says: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(about, Level.OK, says)


def note(about: str, says: str, remedy: str) -> Finding:
    """Return a finding that deserves attention."""
    return Finding(about, Level.NOTE, says, remedy)


def wrong(about: str, says: str, remedy: str) -> Finding:
    """Return a finding about an error."""
    return Finding(about, Level.WRONG, says, remedy)


def run_check(about: str, check: Check) -> Iterator[Finding]:
    """Run a check, and yield its findings. An error of the check is a finding too."""
    try:
        yield from list(check())
    except (OSError, StoreError) as error:
        yield wrong(about, f"cannot be checked: {error}", "correct that, or run this as the server's user")
