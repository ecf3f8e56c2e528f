"""Accesses the hot store during a run: in short transactions with pauses, from any thread."""

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
"""A transaction starts no new step after it has held the write lock for 10 ms."""

SHARED_BUDGET_SECONDS = 0.0006
"""The same while other processes write: 0.6 ms."""

SHARED_REST_SECONDS = 0.0015
"""The minimum pause while other processes write, since a waiting process polls the lock."""

ALONE_REST = 0.25
"""The pause while no other process writes, as a fraction of the transaction before it."""

RETURNED_PAGES = 384
"""A transaction starts no new step once its end will return 384 pages to the file system."""

SHARED_RETURNED_PAGES = 128
"""The same while other processes write. The time budget does not cover this: the pages are returned at the end."""

ALONE_AFTER_SECONDS = 0.5
"""Other processes count as writing until half a second after their last observed commit."""

CACHE_KIB = 64 * 1024
"""SQLite's page cache of a process that deletes: rows deleted together are in a few thousand pages."""

WAL_ATTEMPTS = 100
"""How many times to try to empty the write-ahead log."""

WAL_PAUSE_SECONDS = 0.05
"""The pause between two attempts."""


class WalBusyError(Exception):
    """The WAL could not be emptied because of readers. Deleted data may still be in it."""


class RunTooLongError(Exception):
    """The run has exceeded its time. Its work is kept, and the next run continues."""


class _GarbageCollection:
    """Controls Python's cyclic garbage collection, which takes 10 ms once libraries are loaded."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._count = 0
        self._was_enabled = False

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Context manager that disables collection. Thread-safe: the last thread enables it again."""
        with self._mutex:
            if not self._count:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._count += 1
        try:
            yield
        finally:
            with self._mutex:
                self._count -= 1
                if not self._count and self._was_enabled:
                    gc.enable()


garbage = _GarbageCollection()
"""Shared by all pacers: several threads move batches of the archive."""


class Pacer:
    """Runs steps in short transactions, with a pause after each.

    While other processes write, it holds the lock for about SHARED_BUDGET_SECONDS, and pauses at least as long;
    otherwise for LOCK_BUDGET_SECONDS, with pauses of ALONE_REST of that. Other processes get the write lock in the
    pauses. It checkpoints the write-ahead log in each pause: otherwise the next commit of a sender would have to sync
    the pages of the run too.
    """

    commits = 0
    """How many transactions the pacers of this process have committed."""

    lock_seconds = longest_lock_seconds = 0.0
    """How long they have held the write lock since ``Costs`` started: in total, and the longest time."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        deadline: float = float("inf"),
        after_pause: Callable[[], None] = lambda: None,
        require: Callable[[], None] = lambda: None,
        *,
        is_durable: bool = False,
    ) -> None:
        """Configure the connection.

        ``deadline``: seconds of the monotonic clock. ``after_pause``: called after each transaction and its pause.
        ``require``: called at the start of each transaction; raises if the run must not continue. Unless
        ``is_durable``, a power failure may undo the last transactions, which can be repeated.
        """
        self.connection = of_store(connection)
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        if not is_durable:
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")  # done in pauses
        self._deadline = deadline
        self._after_pause = after_pause
        self._require = require
        self._last_versions = (self._data_version(), Pacer.commits)
        self._shared_until = 0.0

    def run(self, steps: Iterator[Step]) -> None:
        """Run all ``steps``. Raises RunTooLongError, but only between two transactions."""
        step = next(steps, None)
        while step is not None:
            if time.monotonic() > self._deadline:
                raise RunTooLongError("max_run_time was exceeded; the next run continues")
            started = time.monotonic()
            with garbage.disabled(), write_transaction(self.connection):
                lock_start = time.monotonic()
                reach("apply.begun")
                self._require()
                steps_start = time.monotonic()
                is_shared = self._is_shared(steps_start)
                budget = SHARED_BUDGET_SECONDS if is_shared else LOCK_BUDGET_SECONDS
                max_pages = SHARED_RETURNED_PAGES if is_shared else RETURNED_PAGES
                while (
                    step is not None
                    and time.monotonic() - steps_start < budget
                    and self.connection.pages_to_return < max_pages
                ):
                    if not step():
                        step = next(steps, None)
                reach("apply.before_commit")
            Pacer.commits += 1
            reach("apply.after_commit")
            ended = time.monotonic()
            Pacer.lock_seconds += ended - lock_start
            Pacer.longest_lock_seconds = max(Pacer.longest_lock_seconds, ended - lock_start)
            duration = ended - started
            pause_end = ended + (max(duration, SHARED_REST_SECONDS) if is_shared else duration * ALONE_REST)
            # The last transaction is left to the next call, or to empty_wal.
            if step is not None:
                checkpoint(self.connection)
            time.sleep(max(0.0, pause_end - time.monotonic()))
            self._after_pause()

    def _is_shared(self, now: float) -> bool:
        """Return whether another process has committed recently."""
        data_version, commits = self._data_version(), Pacer.commits
        if data_version != self._last_versions[0] and commits == self._last_versions[1]:
            self._shared_until = now + ALONE_AFTER_SECONDS
        self._last_versions = (data_version, commits + 1)
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


class ArchiveRunError(Exception):
    """The archive is damaged, or does not match the database. The message says why."""


@dataclass(frozen=True)
class Hot:
    """Accesses one store, with the settings and the time of a run.

    ``now``: the Unix second of the run. ``deadline``: the end of the run, seconds of the monotonic clock. ``require``:
    called at the start of each transaction; raises if the run must not continue. ``prepare``: called at the start of
    each snapshot, for dry runs.
    """

    path: Path
    settings: PolicySettings
    now: int
    deadline: float = float("inf")
    require: Callable[[sqlite3.Connection], None] = lambda _: None
    prepare: Callable[[sqlite3.Connection], object] = lambda _: None

    def with_prepare(self, prepare: Callable[[sqlite3.Connection], object]) -> Self:
        """Return a copy that calls ``prepare`` on each snapshot. It may write only to temporary tables."""
        return replace(self, prepare=prepare)

    def without_deadline(self) -> Self:
        """Return a copy without deadline and ``require``, for the end of a run."""
        return replace(self, deadline=float("inf"), require=lambda _: None)

    def read(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` on one snapshot and return its result."""
        with closing(sqlite.connect(self.path, readonly=True)) as connection:
            connection.execute("BEGIN")
            self.prepare(connection)
            return fn(connection, *args, **kwargs)

    def archive_state(self) -> ArchiveState:
        """Return the state of the archive in the store. Raises ArchiveRunError if there is none."""
        state = self.read(moves.find_state)
        if state is None:
            raise ArchiveRunError("the database has no archive")
        return state

    def write(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` in one short, durable transaction and return its result.

        Raises RunTooLongError, or the errors of ``require``.
        """
        results: list[T] = []

        def step(connection: sqlite3.Connection) -> bool:
            results.append(fn(connection, *args, **kwargs))
            return False

        self._run(lambda connection: iter([lambda: step(connection)]), is_durable=True)
        return results[0]

    def write_steps(self, steps: Callable[[sqlite3.Connection], Iterator[Step]]) -> None:
        """Run short steps in as many transactions as they need. Raises the errors of ``write``.

        A power failure may undo the last transactions, see Pacer.
        """
        self._run(steps, is_durable=False)

    def _run(self, steps: Callable[[sqlite3.Connection], Iterator[Step]], *, is_durable: bool) -> None:
        with closing(sqlite.connect(self.path)) as connection:
            pacer = Pacer(connection, self.deadline, require=lambda: self.require(connection), is_durable=is_durable)
            pacer.run(steps(connection))
