"""Runs steps on the hot store in short transactions, with rests between them."""

import sqlite3
import time
from collections.abc import Callable, Iterator

from conclave.failpoints import reach
from conclave.store.sqlite import Step, checkpoint, truncate_wal, write_transaction

LOCK_BUDGET_SECONDS = 0.010
"""No new step begins once a transaction has held the write lock for 10 ms."""

CACHE_KIB = 64 * 1024
"""SQLite's page cache has 64 MiB in a process that deletes: rows deleted together lie in a few thousand pages."""

WAL_ATTEMPTS = 100
"""Emptying the write-ahead log is tried at most 100 times."""

WAL_PAUSE_SECONDS = 0.05
"""The pause between two tries to empty the write-ahead log."""


class WalBusyError(Exception):
    """The WAL could not be emptied, since readers kept it open. Deleted data may still be in it."""


class RunTooLongError(Exception):
    """The run has taken longer than it may. What it did stays done, and the next run continues."""


class Pacer:
    """Runs steps in transactions of about LOCK_BUDGET_SECONDS, and rests after each as long as it took.

    Other processes get the write lock during the rests. Work without the lock is done then: the write-ahead log is
    copied into the database during a rest, not at a commit that finds the log long.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        deadline: float = float("inf"),
        rested: Callable[[], None] = lambda: None,
        require: Callable[[], None] = lambda: None,
        *,
        is_durable: bool = False,
    ) -> None:
        """Set the connection up for the steps.

        ``deadline``: seconds of the monotonic clock. ``rested`` is called after each transaction. ``require`` is called
        at the beginning of each transaction, and raises if the run must not continue. Unless ``is_durable``, a power
        failure may undo the last transactions, with everything that came after them: deleting can be repeated.
        """
        self.connection = connection
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        if not is_durable:
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")  # run does it
        self._deadline = deadline
        self._rested = rested
        self._require = require

    def run(self, steps: Iterator[Step]) -> None:
        """Run all ``steps``. Raises RunTooLongError, but only between two transactions."""
        step = next(steps, None)
        while step is not None:
            if time.monotonic() > self._deadline:
                raise RunTooLongError("max_run_time is over; the next run goes on from here")
            began = time.monotonic()
            with write_transaction(self.connection):
                reach("apply.begun")
                self._require()
                locked = time.monotonic()
                while step is not None and time.monotonic() - locked < LOCK_BUDGET_SECONDS:
                    if not step():
                        step = next(steps, None)
                reach("apply.before_commit")
            reach("apply.after_commit")
            rested = 2 * time.monotonic() - began
            if step is not None:  # the last transaction is left to the next call, or to empty_wal
                checkpoint(self.connection)
            time.sleep(max(0.0, rested - time.monotonic()))
            self._rested()


def empty_wal(connection: sqlite3.Connection) -> None:
    """Empty the write-ahead log, so that no erased data stays in it. Raises WalBusyError."""
    reach("erase.before_wal")
    for _ in range(WAL_ATTEMPTS):
        if truncate_wal(connection):
            reach("erase.after_wal")
            return
        time.sleep(WAL_PAUSE_SECONDS)
    raise WalBusyError("the write-ahead log could not be emptied: a long read kept it open")
