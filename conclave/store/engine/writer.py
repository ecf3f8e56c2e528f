"""The only writer of a server: commits waiting writes together, and resolves each after the commit.

A transaction of small joint writes, such as sends, is prepared on the event loop's thread. Only the commit, which waits
for the disk, runs on the writer's thread. Each statement releases the GIL, and a thread beside a busy event loop has to
wait for it at each statement; the loop's own thread does not. Whatever may take longer runs on the writer's thread as a
whole: larger batches, all other writes, and transactions that find the write lock taken by another process or need data
that is not cached.
"""

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from conclave.events import News
from conclave.failpoints import reach
from conclave.measures import Writes
from conclave.store.engine import sqlite
from conclave.store.engine.connection import StoreConnection, of_store
from conclave.store.engine.connection_thread import ConnectionThread
from conclave.store.engine.faults import StoreError, StoreFullError, Watch, is_busy, is_disk_error, store_error
from conclave.store.engine.group_commit import (
    GroupCommit,
    JointWrite,
    NotCachedError,
    PendingWrite,
    SingleWrite,
    resolve,
    run_joint_one_by_one,
    run_singles,
    run_together,
)
from conclave.store.engine.news import take as take_news

Publish = Callable[[list[News]], None]
"""Publishes the news of transactions, after the commit."""

MAX_WRITES_PER_COMMIT = 256
"""At most 256 writes share a transaction."""

MAX_COMMIT_BYTES = 32 * 1024 * 1024
"""No more writes join a transaction whose joint writes have 32 MiB: changes are in memory until the commit."""

MAX_LOOP_BYTES = 256 * 1024
"""At most 256 KiB are written on the event loop's thread at a time, which takes one or two milliseconds."""

NEEDS_THREAD_WEIGHT = MAX_LOOP_BYTES + 1
"""The weight of writes that never run on the event loop's thread, because they read a lot."""


class _BatchResult(NamedTuple):
    outcomes: Sequence[Any]
    announced: list[News]


class Writer:
    """The writer of an open store."""

    def __init__(self, path: Path, owner: ConnectionThread, publish: Publish, watch: Watch) -> None:
        """``owner``: an open connection for the writer only. ``publish``, ``watch``: see ``Database.open``."""
        self._path = path
        self._file = file_identity(path)
        self._owner = owner
        self._publish = publish
        self._watch = watch
        self.done = Writes()
        self._waiting: deque[tuple[PendingWrite, JointWrite | None, int]] = deque()
        self._is_closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        """The number of writes that wait for the next transaction."""
        return len(self._waiting)

    async def write(self, single: SingleWrite) -> Any:
        """Run ``single`` in a transaction; return its result once that is durable. Raises as ``Database.write``."""
        return await self._add(None, 0, single=single)

    def add_joint(self, joint: JointWrite, item: Any, weight: int) -> "asyncio.Future[Any]":
        """Write ``item`` with ``joint``, together with other items that wait at the same time."""
        return self._add(joint, weight, item=item)

    @property
    def is_idle(self) -> bool:
        """Whether no write waits or is in progress."""
        return self._idle.is_set()

    def limit_lock_wait(self, until: float) -> None:
        """Set the deadline for waits for the write lock, in seconds of the monotonic clock."""
        with suppress(StoreError):  # without a connection nothing waits for the lock
            self._owner.connection.waits_until = until

    async def close(self) -> None:
        """Finish the waiting writes, and reject new ones."""
        self._is_closed = True
        await self._idle.wait()

    def _add(
        self,
        joint: JointWrite | None,
        weight: int,
        *,
        item: Any = None,
        single: SingleWrite | None = None,
    ) -> "asyncio.Future[Any]":
        if self._is_closed:
            raise StoreError("the store is closed")
        loop = asyncio.get_running_loop()
        write = PendingWrite(loop.create_future(), item, single)
        self._waiting.append((write, joint, weight))
        if self._idle.is_set():
            self._idle.clear()
            # After this iteration of the event loop, so that all its writes share the transaction.
            loop.call_soon(self._begin)
        return write.done

    def _begin(self) -> None:
        """Begin the next transaction: on this thread if it is small and the lock is free, else on the writer's."""
        if not self._waiting:
            self._idle.set()
            return
        batch = GroupCommit()
        while self._waiting and batch.count < MAX_WRITES_PER_COMMIT and batch.weight < MAX_COMMIT_BYTES:
            batch.add(*self._waiting.popleft())
        transaction = _Transaction(self._path, self._file, self._watch, batch)
        is_small = not batch.singles and batch.weight <= MAX_LOOP_BYTES
        try:
            is_prepared = is_small and transaction.try_to_prepare(self._owner.connection)
        except Exception as error:  # noqa: BLE001 - every caller must get the error
            future = self._owner.submit(partial(_fail, error))  # on the thread, which also checks the connection
        else:
            future = self._owner.submit(transaction.commit if is_prepared else transaction.carry_out)
        future.add_done_callback(partial(self._end, transaction))

    def _end(self, transaction: "_Transaction", future: "asyncio.Future[_BatchResult]") -> None:
        """Publish the news, and resolve the writes."""
        batch = transaction.batch
        try:
            outcomes, announced = future.result()
        except Exception as error:  # noqa: BLE001 - as in _begin
            outcomes, announced = [store_error(self._path, error)] * batch.count, []
        self.done.record(batch.count, transaction.lock_seconds, transaction.commit_seconds)
        self._watch.wrote(next((each for each in outcomes if isinstance(each, StoreError)), None))
        try:
            self._publish(announced)
        finally:
            for write, outcome in zip(batch, outcomes, strict=True):
                resolve(write.done, outcome)
            self._begin()  # at once: the disk works while the callers continue


class _Transaction:
    """A transaction of the writer. It may begin on one thread and end on another.

    ``lock_seconds``: the time waited for the write lock. ``commit_seconds``: the duration of the commit; None before.
    """

    def __init__(self, path: Path, file: tuple[int, int] | None, watch: Watch, batch: GroupCommit) -> None:
        self._path = path
        self._file = file
        self._watch = watch
        self.batch = batch
        self.lock_seconds = 0.0
        self.commit_seconds: float | None = None
        self._announced: list[News] = []
        self._outcomes: list[Any] = []
        self._open = ExitStack()

    def try_to_prepare(self, connection: sqlite3.Connection) -> bool:
        """Do everything except the commit, without blocking. Return whether that succeeded.

        Returns False, without changes, if another process holds the write lock or required data is not cached. Raises
        errors that prevent the commit.
        """
        of_store(connection).is_on_event_loop = True
        try:
            self._prepare(connection, patience=0)
        except NotCachedError:
            return False
        except sqlite3.OperationalError as error:
            if is_busy(error):
                return False
            raise
        finally:
            of_store(connection).is_on_event_loop = False
        return True

    def carry_out(self, connection: sqlite3.Connection) -> _BatchResult:
        """Run the whole transaction. Raises errors that prevent the commit."""
        self._prepare(connection, patience=sqlite.LOCK_WAIT_SECONDS)
        return self.commit(connection)

    def commit(self, connection: sqlite3.Connection) -> _BatchResult:
        """Run the single writes, and commit. Raises errors that prevent the commit."""
        with self._open:
            self._outcomes += run_singles(self.batch, of_store(connection))
            reach("writer.before_commit")
            started_at = time.monotonic()
        self.commit_seconds = time.monotonic() - started_at
        reach("writer.after_commit")
        outcomes = [store_error(self._path, each) if _is_disk_failure(each) else each for each in self._outcomes]
        return _BatchResult(outcomes, self._announced)

    def _prepare(self, connection: sqlite3.Connection, patience: float) -> None:
        try:
            self._begin(connection, run_together, patience)
        except Exception as error:
            if _affects_all_writes(error):
                raise
            if of_store(connection).is_on_event_loop:  # separately, they take longer and may need uncached data
                raise NotCachedError from error
            self._begin(connection, run_joint_one_by_one, patience)

    def _begin(
        self, connection: sqlite3.Connection, run: Callable[[GroupCommit, StoreConnection], list[Any]], patience: float
    ) -> None:
        """Take the write lock and run the joint writes. The transaction stays open, unless this raises."""
        with ExitStack() as stack:
            started_at = time.monotonic()
            try:
                stack.enter_context(sqlite.write_transaction(connection, self._collect, patience))
            finally:
                self.lock_seconds += time.monotonic() - started_at
            if file_identity(self._path) != self._file:
                # Writes to the open file would be lost.
                raise StoreError(f"{self._path}: was moved or replaced while the server runs: put it back, or restart")
            of_store(connection).room = self._watch.room()
            self._outcomes = run(self.batch, of_store(connection))
            self._open = stack.pop_all()

    def _collect(self, connection: sqlite3.Connection, news: list[News]) -> None:
        # The outbox first: other processes committed it earlier.
        self._announced += [*take_news(connection), *news]


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode number of ``path``; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _fail(error: Exception, _: sqlite3.Connection) -> _BatchResult:
    raise error


def _is_disk_failure(outcome: Any) -> bool:
    return isinstance(outcome, Exception) and is_disk_error(outcome)


def _affects_all_writes(error: Exception) -> bool:
    """Return whether an error concerns the whole transaction, so that running the writes separately does not help."""
    if isinstance(error, StoreError):
        return not isinstance(error, StoreFullError)
    return isinstance(error, NotCachedError) or is_disk_error(error) or is_busy(error)
