"""What runs inside one transaction of the store: many functions, each undone alone if it fails."""

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from conclave.events import News
from conclave.failpoints import reach
from conclave.store.announce import AnnouncingConnection

T = TypeVar("T")


@dataclass
class _Result:
    value: Any


def run_all(
    fns: list[Callable[[sqlite3.Connection], Any]], connection: AnnouncingConnection
) -> tuple[list[Any], list[News]]:
    """Run ``fns``, each in a savepoint; return for each a _Result or the exception that it raised.

    Beside that, what those announced that did not raise.
    """
    outcomes: list[_Result | Exception] = []
    announced: list[News] = []
    for fn in fns:
        connection.execute("SAVEPOINT one_write")
        reach("writer.begun")
        room = connection.room
        try:
            connection.announced = []
            outcomes.append(_Result(fn(connection)))
            announced += connection.announced
            reach("writer.applied")
        except Exception as error:
            if not connection.in_transaction:
                # SQLite gave up the whole transaction (disk full, I/O error): none of the batch is applied.
                raise
            connection.execute("ROLLBACK TO one_write")
            connection.room = room
            outcomes.append(error)
        connection.execute("RELEASE one_write")
    return outcomes, announced


def settle(done: asyncio.Future[Any], outcome: Any) -> None:
    """Give a caller what ``run_all`` returned for it."""
    if done.cancelled():
        return
    if isinstance(outcome, _Result):
        done.set_result(outcome.value)
    else:
        done.set_exception(outcome)


def snapshot(connection: sqlite3.Connection, fn: Callable[[], T]) -> T:
    """Run ``fn`` in a read transaction."""
    connection.execute("BEGIN")
    try:
        return fn()
    finally:
        if connection.in_transaction:  # not if SQLite has given it up: then its reason is to be heard
            connection.execute("ROLLBACK")
