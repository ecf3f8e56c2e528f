"""Tells whether a database has come after a restore, or was given up for it: the ledger has lines of both.

A restore begins another history, from a copy. Its line says with which change that copy ended. So a database that has
come further, and knows nothing of the restore, was given up, or is a backup of one that was: what has ended since may
have ended only because the copy had less.
"""

import sqlite3
from pathlib import Path
from typing import NamedTuple

from conclave.retention.policy import FOREVER
from conclave.store.ledger import book
from conclave.store.ledger.book import RESTORE, Entry, LedgerError
from conclave.store.ledger.changes import Standing, standing


def is_older(standing: Standing, tip: tuple[str, int] | None) -> bool:
    """Tell whether the database is an older copy of the one that its ledger speaks of.

    ``tip``: see ``book.tip``. It is read before ``standing``: other processes may tell the ledger of changes at any
    time, and what it tells is in the database by then.
    """
    return tip is not None and tip[0] == standing.ledger_id and tip[1] > standing.counter


def fault_of_copy(connection: sqlite3.Connection, database: Path, path: Path) -> str:
    """Say why a database must not be changed: it is an older copy, and has yet to be served. "" if it is none.

    What is changed in it would count as what it has to learn. What is wrong with the ledger is told when it is written.
    """
    try:
        tip = book.tip(path)
    except LedgerError:
        return ""
    if not is_older(standing(connection), tip):
        return ""
    return (
        f"{database}: is a restored copy, and has yet to learn from {path} what it must not bring back: start"
        " `conclave serve` on it first"
    )


def own_end(path: Path, standing: Standing, last_change: int) -> int | None:
    """Return the last change in the ledger of the history of a database that was given up; None if it was not.

    A restore whose database was never used does not count. ``last_change``: the greatest number in the ledger.
    """
    end, found = last_change, None
    for restore in reversed(_restores(path)):
        has_less = restore.state.get("from", FOREVER) < standing.counter
        if restore.state["number"] > standing.restored and has_less and restore.change < end:
            found = restore.change
        end = restore.change
    return found


def take_up(standing: Standing, path: Path, now: int) -> int:
    """Note that the database goes on, if a copy of it was restored and never used.

    Call it before anything else is written, and only if the database is no older copy. Returns the number of the last
    restore. Raises LedgerError.
    """
    found = book.look(path)
    if found is None or found.restored <= standing.restored:
        return standing.restored
    lines = [
        Entry(found.last_change, now, RESTORE, each.subject, each.state | {"from": standing.counter})
        for each in _restores(path)
        if each.state["number"] > standing.restored
    ]
    book.append(path, standing.ledger_id, standing.written, lines)
    return found.restored


class _Restore(NamedTuple):
    """The line of a restore. ``state``: its number, and from which change on it began another history."""

    change: int
    subject: int | str
    state: dict[str, int]


def _restores(path: Path) -> list[_Restore]:
    """Return the last line of each restore, in the order of the lines."""
    found: dict[int, _Restore] = {}
    for entry in book.entries(path, -1):
        if entry.kind == RESTORE and entry.state:
            number = entry.state["number"]
            found.pop(number, None)
            found[number] = _Restore(entry.change, entry.subject, entry.state)
    return list(found.values())
