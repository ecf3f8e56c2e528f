"""The hot store in a run: steps in short transactions with rests between them, by connections in any thread."""

import gc
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from conclave.failpoints import reach
from conclave.retention.resolve import PolicySettings
from conclave.store.archive import moves
from conclave.store.archive.moves import ArchiveState
from conclave.store.engine import sqlite
from conclave.store.engine.connection import of_store
from conclave.store.engine.sqlite import Step, checkpoint, truncate_wal, write_transaction

LOCK_BUDGET_SECONDS = 0.010
"""No new step begins once a transaction has held the write lock for 10 ms."""

SHARED_BUDGET_SECONDS = 0.0006
"""While others write, no new step begins once a transaction has held the write lock for 0.6 ms."""

SHARED_REST_SECONDS = 0.0015
"""While others write, a rest takes at least 1.5 ms: who waits for the lock asks for it again and again."""

ALONE_REST = 0.25
"""While no other process writes, a rest takes at least a quarter of the time that the transaction before it took."""

RETURNED_PAGES = 384
"""No new step begins once 384 pages are to be returned to the file system at the end of the transaction."""

SHARED_RETURNED_PAGES = 128
"""While others write, no new step begins once 128 pages are to be returned.

Steps that ask for it take no time themselves, so no budget ends them.
"""

ALONE_AFTER_SECONDS = 0.5
"""Others count as writing until half a second after their last commit that was noticed."""

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


class _Garbage:
    """Python's search for circles of objects, which takes 10 ms once libraries are loaded."""

    def __init__(self) -> None:
        """Leave it as it is."""
        self._changing = threading.Lock()
        self._count = 0
        self._was_enabled = False

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Let none take place during the block. Threads may be in such blocks at once: the last one ends it."""
        with self._changing:
            if not self._count:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._count += 1
        try:
            yield
        finally:
            with self._changing:
                self._count -= 1
                if not self._count and self._was_enabled:
                    gc.enable()


garbage = _Garbage()
"""That of this process: the archive's batches are moved by several threads, each with a pacer."""


class Pacer:
    """Runs steps in short transactions, with a rest after each.

    While others write, it holds the lock for about SHARED_BUDGET_SECONDS, which they hardly notice, and rests at least
    as long as that took; otherwise it holds it for LOCK_BUDGET_SECONDS, and rests for ALONE_REST of that: the first of
    others to come needs no more. Other processes get the write lock during the rests. Work without the lock is done
    then: the write-ahead log is copied into the database during a rest, not at a commit that finds the log long. That
    is done in every rest: what is not synced yet would have to be synced by the next commit of a sender.
    """

    commits = 0
    """How many transactions the pacers of this process have committed."""

    lock_seconds = longest_lock_seconds = 0.0
    """For how long they have held the write lock, in all and at the longest, since ``Costs`` began."""

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
        self.connection = of_store(connection)
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        if not is_durable:
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")  # run does it
        self._deadline = deadline
        self._rested = rested
        self._require = require
        self._seen = (self._data_version(), Pacer.commits)
        self._shared_until = 0.0

    def run(self, steps: Iterator[Step]) -> None:
        """Run all ``steps``. Raises RunTooLongError, but only between two transactions."""
        step = next(steps, None)
        while step is not None:
            if time.monotonic() > self._deadline:
                raise RunTooLongError("max_run_time is over; the next run goes on from here")
            began = time.monotonic()
            with garbage.put_off(), write_transaction(self.connection):
                held_from = time.monotonic()
                reach("apply.begun")
                self._require()
                locked = time.monotonic()
                is_shared = self._is_shared(locked)
                budget = SHARED_BUDGET_SECONDS if is_shared else LOCK_BUDGET_SECONDS
                most_pages = SHARED_RETURNED_PAGES if is_shared else RETURNED_PAGES
                while (
                    step is not None
                    and time.monotonic() - locked < budget
                    and self.connection.pages_to_return < most_pages
                ):
                    if not step():
                        step = next(steps, None)
                reach("apply.before_commit")
            Pacer.commits += 1
            reach("apply.after_commit")
            ended = time.monotonic()
            Pacer.lock_seconds += ended - held_from
            Pacer.longest_lock_seconds = max(Pacer.longest_lock_seconds, ended - held_from)
            took = ended - began
            rested = ended + (max(took, SHARED_REST_SECONDS) if is_shared else took * ALONE_REST)
            # The last transaction is left to the next call, or to empty_wal.
            if step is not None:
                checkpoint(self.connection)
            time.sleep(max(0.0, rested - time.monotonic()))
            self._rested()

    def _is_shared(self, now: float) -> bool:
        """Return whether others write, too: whether another process has committed lately. Other pacers do not count."""
        seen = (self._data_version(), Pacer.commits)
        if seen[0] != self._seen[0] and seen[1] == self._seen[1]:
            self._shared_until = now + ALONE_AFTER_SECONDS
        self._seen = (seen[0], seen[1] + 1)
        return now < self._shared_until

    def _data_version(self) -> int:
        """Return a number that changes when another connection has committed."""
        version: int = self.connection.execute("PRAGMA data_version").fetchone()[0]
        return version


def empty_wal(connection: sqlite3.Connection) -> None:
    """Empty the write-ahead log, so that no erased data stays in it. Raises WalBusyError."""
    reach("erase.before_wal")
    for _ in range(WAL_ATTEMPTS):
        if truncate_wal(connection):
            reach("erase.after_wal")
            return
        time.sleep(WAL_PAUSE_SECONDS)
    raise WalBusyError("the write-ahead log could not be emptied: a long read kept it open")


P = ParamSpec("P")
T = TypeVar("T")


class ArchiveError(Exception):
    """The archive is not as it should be. The message says what was found."""


@dataclass(frozen=True)
class Hot:
    """One store, with the settings and the time of a run.

    ``now``: the Unix second of the run. ``deadline``: when the run must end, seconds of the monotonic clock.
    ``require`` is called at the beginning of each transaction, and raises if the run must not continue. ``prepare`` is
    called at the beginning of each snapshot: a dry run looks at the store as it would be.
    """

    path: Path
    settings: PolicySettings
    now: int
    deadline: float = float("inf")
    require: Callable[[sqlite3.Connection], None] = lambda _: None
    prepare: Callable[[sqlite3.Connection], object] = lambda _: None

    def seen_through(self, prepare: Callable[[sqlite3.Connection], object]) -> Self:
        """Return the same with each snapshot prepared by ``prepare``, which writes to temporary tables only."""
        return replace(self, prepare=prepare)

    def without_deadline(self) -> Self:
        """Return the same without deadline and ``require``, for the work that must be done at the end of every run."""
        return replace(self, deadline=float("inf"), require=lambda _: None)

    def read(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` on one snapshot and return its result."""
        with closing(sqlite.connect(self.path, readonly=True)) as connection:
            connection.execute("BEGIN")
            self.prepare(connection)
            return fn(connection, *args, **kwargs)

    def archive_state(self) -> ArchiveState:
        """Return what the store knows of its archive as a whole. Raises ArchiveError if it has none."""
        state = self.read(moves.find_state)
        if state is None:
            raise ArchiveError("the store knows of no archive")
        return state

    def write(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` in one short, durable transaction and return its result.

        Raises RunTooLongError, or what ``require`` raises.
        """
        results: list[T] = []

        def step(connection: sqlite3.Connection) -> bool:
            results.append(fn(connection, *args, **kwargs))
            return False

        self._run(lambda connection: iter([lambda: step(connection)]), is_durable=True)
        return results[0]

    def write_steps(self, steps: Callable[[sqlite3.Connection], Iterator[Step]]) -> None:
        """Run short steps in as many transactions as they need. Raises as ``write`` does.

        A power failure may undo the last transactions, see Pacer.
        """
        self._run(steps, is_durable=False)

    def _run(self, steps: Callable[[sqlite3.Connection], Iterator[Step]], *, is_durable: bool) -> None:
        with closing(sqlite.connect(self.path)) as connection:
            pacer = Pacer(connection, self.deadline, require=lambda: self.require(connection), is_durable=is_durable)
            pacer.run(steps(connection))
