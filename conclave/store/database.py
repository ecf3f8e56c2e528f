"""The database: one writer that commits in groups, a few readers, checkpoints, a clean close.

A store function is synchronous and takes the ``sqlite3`` connection first. ``write`` and ``read`` run it on the thread
that owns a connection. Writes that wait at the same time share one transaction and one fsync, each in a savepoint of
its own. A caller is answered only after the commit.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import aiosqlite

from conclave.events import News
from conclave.failpoints import reach
from conclave.logs import get_logger
from conclave.store import sqlite
from conclave.store.connection import of_store
from conclave.store.faults import StoreError, Watch, is_of_the_disk, store_error
from conclave.store.group_commit import run_all, settle, snapshot
from conclave.store.schema import prepare

log = get_logger(__name__)


Publish = Callable[[list[News]], None]
"""Takes what transactions have announced, after the commit."""


P = ParamSpec("P")


T = TypeVar("T")


READERS = 3
"""At most 3 reads run at the same time, each on a connection of its own."""


WRITES_A_COMMIT = 256
"""At most 256 writes share a transaction."""


WAL_TARGET_BYTES = 4 * 1024 * 1024
"""The checkpointer empties a write-ahead log of more than 4 MiB."""


CHECKPOINT_INTERVAL_SECONDS = 1.0
"""The checkpointer looks at the write-ahead log once a second."""


WAL_LIMIT_BYTES = 8 * 1024 * 1024
"""The writer itself copies a write-ahead log of more than 8 MiB into the database.

What is acknowledged must find room in the database, even if the disk fills up meanwhile. Cleanup's reserve is room for
this much and for more.
"""


PAGE_BYTES = 4096
"""A page of the database has 4096 bytes: SQLite's default."""


class _Owner(aiosqlite.Connection):
    """An aiosqlite connection that runs a whole function on its thread: one hop a call, not one a statement."""

    def __init__(self, path: Path) -> None:
        super().__init__(partial(sqlite.connect, path), iter_chunk_size=64)
        self._thread.daemon = True  # a process that could not close its store must still be able to end

    async def run(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        result: T = await self._execute(fn, self._conn)  # type: ignore[no-untyped-call]  # aiosqlite leaves it untyped
        return result


@dataclass
class _Write:
    fn: Callable[[sqlite3.Connection], Any]
    done: asyncio.Future[Any]


class Database:
    """The open store of one server process."""

    def __init__(self, path: Path, publish: Publish, watch: Watch) -> None:
        """Prepare only; use ``open`` to get a working store."""
        self.path = path
        self._publish = publish
        self._watch = watch
        self._file = _identity(path)
        self._waiting: list[_Write] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._idle_readers: list[_Owner] = []
        self._reader_slots = asyncio.Semaphore(READERS)  # served in the order of arrival, so nobody waits for ever
        self._owners: list[_Owner] = []
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, path: Path, publish: Publish = lambda _: None, watch: Watch | None = None) -> Self:
        """Open the store at ``path``, creating or migrating it. Raises StoreError.

        ``publish`` gets what transactions announce, after the commit and before their callers continue. ``watch`` hears
        how the disk fares.
        """
        await asyncio.to_thread(prepare, path)
        self = cls(path, publish, watch or Watch())
        try:
            await self._begin()
        except BaseException:
            await self._close_owners()
            raise
        return self

    async def _begin(self) -> None:
        writer, checkpointer, *readers = [await self._open_owner() for _ in range(2 + READERS)]
        most_pages = WAL_LIMIT_BYTES // PAGE_BYTES
        await writer.run(lambda connection: connection.execute(f"PRAGMA wal_autocheckpoint = {most_pages}"))
        for reader in readers:
            await reader.run(lambda connection: connection.execute("PRAGMA query_only = ON"))
            self._idle_readers.append(reader)
        self._tasks = [
            asyncio.create_task(self._write_together(writer)),
            asyncio.create_task(self._keep_wal_short(checkpointer)),
        ]

    async def _open_owner(self) -> _Owner:
        owner = _Owner(self.path)
        self._owners.append(owner)
        await owner
        return owner

    async def close(self) -> None:
        """Finish the writes that wait, move the WAL into the database, and close every file."""
        self._closing = True
        self._wake.set()
        await self._tasks[0]
        self._tasks[1].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._tasks[1]
        writer = self._owners.pop(0)
        await self._close_owners()
        self._owners = [writer]
        try:
            await writer.run(sqlite.truncate_wal)
        except sqlite3.Error as error:
            log.error("checkpoint_failed", error=str(error))
        finally:
            await self._close_owners()

    async def _close_owners(self) -> None:
        """Close all connections, so that their threads do not keep the process from ending."""
        for owner in self._owners:
            await owner.close()

    async def write(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` in a transaction and return its result once its changes are durable.

        If ``fn`` raises, only its own changes are undone. Raises StoreError if the commit failed: then nothing of the
        whole transaction was applied.
        """
        if self._closing:
            raise StoreError("the store is closed")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Write(lambda connection: fn(connection, *args, **kwargs), done))
        self._wake.set()
        return await done

    async def read(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` in a read transaction, one snapshot, and return its result.

        Raises StoreError if the database cannot be read.
        """
        async with self._reader_slots:
            reader = self._idle_readers.pop()
            try:
                result = await reader.run(
                    lambda connection: snapshot(connection, lambda: fn(connection, *args, **kwargs))
                )
            except sqlite3.Error as error:
                if not is_of_the_disk(error):
                    raise
                unreadable = store_error(self.path, error)
                self._watch.read(unreadable)
                raise unreadable from error
            finally:
                self._idle_readers.append(reader)
        self._watch.read(None)
        return result

    async def _write_together(self, writer: _Owner) -> None:
        while self._waiting or not self._closing:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
                continue
            writes, self._waiting = self._waiting[:WRITES_A_COMMIT], self._waiting[WRITES_A_COMMIT:]
            announced: list[News] = []
            try:
                outcomes, announced = await writer.run(partial(self._commit_all, [each.fn for each in writes]))
            except Exception as error:  # noqa: BLE001 - each caller of the transaction must get the error, of any kind
                outcomes = [store_error(self.path, error)] * len(writes)
            self._watch.wrote(next((each for each in outcomes if isinstance(each, StoreError)), None))
            self._publish(announced)
            for each, outcome in zip(writes, outcomes, strict=True):
                settle(each.done, outcome)

    def _commit_all(
        self, fns: list[Callable[[sqlite3.Connection], Any]], connection: sqlite3.Connection
    ) -> tuple[list[Any], list[News]]:
        """Run ``fns`` in one transaction, if the database file was not replaced. See ``run_all``."""
        announced: list[News] = []
        with sqlite.write_transaction(connection, lambda _, news: announced.extend(news)):
            if _identity(self.path) != self._file:
                # A write to the file that is still open would be lost with that file.
                raise StoreError(f"{self.path}: was moved or replaced while the server runs: put it back, or restart")
            of_store(connection).room = self._watch.room()
            outcomes = run_all(fns, of_store(connection))
            reach("writer.before_commit")
        reach("writer.after_commit")
        return [store_error(self.path, each) if _is_disk(each) else each for each in outcomes], announced

    @contextlib.asynccontextmanager
    async def _no_readers(self) -> AsyncIterator[None]:
        """Let no read of this process run while the block lasts."""
        async with contextlib.AsyncExitStack() as slots:
            for _ in range(READERS):
                await slots.enter_async_context(self._reader_slots)
            yield

    async def _keep_wal_short(self, checkpointer: _Owner) -> None:
        wal = self.path.with_name(self.path.name + "-wal")
        while True:
            await asyncio.sleep(CHECKPOINT_INTERVAL_SECONDS)
            with self._watch.checkpointing():
                if (
                    wal.exists()
                    and wal.stat().st_size > WAL_TARGET_BYTES
                    and not await checkpointer.run(sqlite.truncate_wal)
                ):
                    # Some read is always under way: hold new reads back for a moment.
                    async with self._no_readers():
                        await checkpointer.run(sqlite.truncate_wal)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return which file ``path`` is, as device and inode number; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_disk(outcome: Any) -> bool:
    return isinstance(outcome, Exception) and is_of_the_disk(outcome)
