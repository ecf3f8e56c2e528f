"""What runs inside one transaction of the store: many functions, each undone alone if it fails."""

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from conclave.failpoints import reach
from conclave.store.connection import StoreConnection

T = TypeVar("T")


@dataclass
class _Result:
    value: Any


def run_all(fns: list[Callable[[sqlite3.Connection], Any]], connection: StoreConnection) -> list[Any]:
    """Run ``fns``, each in a savepoint; return for each a _Result or the exception that it raised.

    What raised has announced nothing, and has taken no room.
    """
    outcomes: list[_Result | Exception] = []
    for fn in fns:
        connection.execute("SAVEPOINT one_write")
        reach("writer.begun")
        room, told = connection.room, len(connection.announced)
        try:
            outcomes.append(_Result(fn(connection)))
            reach("writer.applied")
        except Exception as error:
            if not connection.in_transaction:
                # SQLite gave up the whole transaction (disk full, I/O error): none of the batch is applied.
                raise
            connection.execute("ROLLBACK TO one_write")
            connection.room = room
            del connection.announced[told:]
            outcomes.append(error)
        connection.execute("RELEASE one_write")
    return outcomes


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
