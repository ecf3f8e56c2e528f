"""Work on the hot store in short transactions, with rests between them."""

import sqlite3
import time
from collections.abc import Callable, Iterator

from conclave.failpoints import reach
from conclave.store.database import Step, checkpoint, truncate_wal, write_transaction

LOCK_BUDGET_SECONDS = 0.010


CACHE_KIB = 64 * 1024
"""Of pages, in a process that deletes: what is deleted together lies in a few thousand."""


WAL_ATTEMPTS = 100


WAL_PAUSE_SECONDS = 0.05


class WalBusyError(Exception):
    """The WAL could not be emptied: somebody kept reading it. What was deleted may still be in it."""


class RunTooLongError(Exception):
    """The run has taken longer than it may; what it did is done, the next one goes on."""


class Pacer:
    """Runs steps in transactions of about LOCK_BUDGET_SECONDS, resting after each as long as it took.

    Others who want the write lock get it in between. What needs no lock is done meanwhile: the write-ahead log is
    copied into the database then, not at each commit that finds it long.
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
        """``deadline``: on the monotonic clock; ``rested`` is called after each transaction.

        ``require`` is called at the beginning of each, and raises if the run must not go on. Unless ``is_durable``, a
        power failure may undo the last transactions, together with whatever came after them: deleting can be repeated.
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
        """Run all ``steps``. Raises RunTooLongError between two transactions."""
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
            if step is not None:  # what this run has written last is left to the next, or to empty_wal
                checkpoint(self.connection)
            time.sleep(max(0.0, rested - time.monotonic()))
            self._rested()


def empty_wal(connection: sqlite3.Connection) -> None:
    """Leave nothing of what was erased in the write-ahead log. Raises WalBusyError."""
    reach("erase.before_wal")
    for _ in range(WAL_ATTEMPTS):
        if truncate_wal(connection):
            reach("erase.after_wal")
            return
        time.sleep(WAL_PAUSE_SECONDS)
    raise WalBusyError("the write-ahead log could not be emptied: a long read kept it open")
