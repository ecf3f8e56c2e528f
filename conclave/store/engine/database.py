"""The database: a writer with group commit, a few readers, checkpoints, a clean close.

A store function is synchronous and takes the ``sqlite3`` connection first. ``write`` and ``read`` run it on the thread
of a connection. Concurrent writes share one transaction and one fsync, see ``writer.py``. Callers get their results
after the commit.
"""

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Self, TypeVar, cast

from conclave.logs.setup import get_logger
from conclave.measures import Writes
from conclave.retention.policy import FormerPolicies, PolicyChange
from conclave.store.engine import faults, sqlite
from conclave.store.engine.connection import StoreConnection
from conclave.store.engine.connection_thread import ConnectionThread
from conclave.store.engine.faults import StoreError, Watch, file_size, is_disk_error, store_error
from conclave.store.engine.group_commit import snapshot
from conclave.store.engine.schema import prepare
from conclave.store.engine.writer import Publish, Writer

if TYPE_CHECKING:
    from conclave.keys.store import KeyStore

log = get_logger(__name__)


P = ParamSpec("P")


I = TypeVar("I")  # noqa: E741 - an item


T = TypeVar("T")


READERS = 3
"""At most 3 reads run at the same time, each on its own connection."""


WAL_KEPT_BYTES = 16 * 1024 * 1024
"""The file of the write-ahead log is truncated if it is larger than 16 MiB.

Otherwise it is kept and reused: a commit that extends the file takes about twice as long.
"""


CHECKPOINT_INTERVAL_SECONDS = 1.0
"""A checkpoint runs every second."""


WAL_LIMIT_BYTES = 8 * 1024 * 1024
"""The writer itself runs a checkpoint if the write-ahead log exceeds 8 MiB.

Acknowledged writes must fit into the database even if the disk fills up before. Cleanup's reserve is larger than this.
"""


PAGE_BYTES = 4096
"""SQLite's default page size, which the database uses."""


_WRITER_PRAGMAS = f"PRAGMA cache_spill = OFF; PRAGMA wal_autocheckpoint = {WAL_LIMIT_BYTES // PAGE_BYTES}"
"""The writer keeps changes in memory until the commit: with cache spill SQLite (e.g. 3.40) may lose committed data.

With spill it writes pages to the log before the commit, and overwrites one that changes again. If a savepoint is rolled
back then, checksums of later pages stay zero: after a crash recovery stops there and ignores what follows.
"""


_READER_PRAGMAS = "PRAGMA query_only = ON; PRAGMA cache_size = -8192"
"""A reader caches 8 MiB of pages instead of 2, since the same index pages are read repeatedly."""


LOCK_WAIT_SECONDS = 10.0
"""While it stops, the server waits for at most 10 seconds for another process's write lock."""


LOG_CHECK_SECONDS = 1.0
"""While the server stops, it checks every second whether it waits for the lock, until it has logged the holder."""


class Database:
    """The open store of one server process."""

    def __init__(self, path: Path, publish: Publish, watch: Watch, keys: "KeyStore | None" = None) -> None:
        """Prepare the object; use ``open`` to open the store. ``keys``: the keys of its messages, if any."""
        self.path = path
        self.keys = keys
        self.former_policies = FormerPolicies()
        self._publish = publish
        self._watch = watch
        self._idle_readers: list[ConnectionThread] = []
        self._reader_slots = asyncio.Semaphore(READERS)  # first come, first served: no starvation
        self._threads: list[ConnectionThread] = []
        self._logging: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        path: Path,
        publish: Publish = lambda _: None,
        watch: Watch | None = None,
        keys: "Callable[[], KeyStore | None]" = lambda: None,
    ) -> Self:
        """Open the store at ``path``, creating or migrating it. Raises StoreError.

        ``publish`` gets the news of transactions, after the commit and before their callers continue. ``watch`` is
        notified of the results of reads and writes. ``keys`` opens the keys of its messages, after the migration.
        """
        await asyncio.to_thread(prepare, path)
        self = cls(path, publish, watch or Watch(), await asyncio.to_thread(keys))
        try:
            await self._start()
        except BaseException:
            await self._close_threads()
            raise
        return self

    def open_keys(self) -> "KeyStore":
        """Return the keys of its messages. Raises StoreError if it was opened without keys."""
        if self.keys is None:
            raise StoreError(f"{self.path}: its keys are not open here")
        return self.keys

    @property
    def written(self) -> Writes:
        """Statistics of the writer's transactions."""
        return self._writer.done

    @property
    def writes_waiting(self) -> int:
        """The number of writes that wait for the next transaction."""
        return self._writer.waiting

    def policy_change(self) -> PolicyChange:
        """Return the collector for a change of one group's policy."""
        return PolicyChange(self.former_policies)

    async def _start(self) -> None:
        writer = await self._open_thread(_WRITER_PRAGMAS)
        checkpointer = await self._open_thread()
        self._idle_readers = [await self._open_thread(_READER_PRAGMAS) for _ in range(READERS)]
        self._writer = Writer(self.path, writer, self._publish, self._watch)
        self._checkpoints = asyncio.create_task(self._keep_wal_short(checkpointer))

    async def _open_thread(self, pragmas: str = "") -> ConnectionThread:
        def prepare(connection: StoreConnection) -> None:
            connection.executescript(pragmas)
            connection.keys, connection.former_policies = self.keys, self.former_policies

        thread = ConnectionThread(self.path, prepare)
        self._threads.append(thread)
        await thread
        return thread

    def limit_lock_wait(self) -> None:
        """Limit all remaining waits for another process's write lock to LOCK_WAIT_SECONDS together, and log its holder.

        Called when the server stops: otherwise each of its last writes would wait that long.
        """
        self._writer.limit_lock_wait(time.monotonic() + LOCK_WAIT_SECONDS)
        self._logging = asyncio.create_task(self._log_lock_wait())

    async def _log_lock_wait(self) -> None:
        while True:
            await asyncio.sleep(LOG_CHECK_SECONDS)
            pid = None if self._writer.is_idle else faults.write_lock_holder(self.path)
            if pid and pid != os.getpid():
                log.warning("stop_waits", holder=faults.process_name(pid), most_seconds=LOCK_WAIT_SECONDS)
                return

    async def close(self) -> None:
        """Finish the waiting writes, checkpoint and truncate the WAL, and close all files."""
        await self._writer.close()
        for task in (self._checkpoints, self._logging):
            if task:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        writer = self._threads.pop(0)
        await self._close_threads()
        self._threads = [writer]
        try:
            await writer.run(sqlite.truncate_wal)
        except sqlite3.Error as error:
            log.error("checkpoint_failed", error=str(error))
        finally:
            await self._close_threads()

    async def _close_threads(self) -> None:
        """Close all connections, and so end their threads."""
        for thread in self._threads:
            await thread.close()
        if self.keys:
            self.keys.close()

    async def write(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` in a transaction and return its result once its changes are durable.

        If ``fn`` raises, only its own changes are rolled back. Raises StoreError if the commit failed: then the whole
        transaction was rolled back.
        """
        return cast(T, await self._writer.write(lambda connection: fn(connection, *args, **kwargs)))

    def begin_joint(
        self, joint: Callable[[sqlite3.Connection, Sequence[I]], Sequence[T | Exception]], item: I, weight: int = 0
    ) -> "asyncio.Future[T]":
        """Start ``write_joint``, and return its future. Raises StoreError if the store is closed."""
        return self._writer.add_joint(joint, item, weight)

    async def write_joint(
        self, joint: Callable[[sqlite3.Connection, Sequence[I]], Sequence[T | Exception]], item: I, weight: int = 0
    ) -> T:
        """Write ``item`` with ``joint``, together with other items that wait at the same time: see ``JointWrite``.

        ``weight``: the bytes of the item. Returns the result, or raises the exception, of ``joint`` for the item, once
        it is durable. Raises StoreError as ``write`` does.
        """
        return await self.begin_joint(joint, item, weight)

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
            except StoreError as error:
                self._watch.read(error)
                raise
            except sqlite3.Error as error:
                if not is_disk_error(error):
                    raise
                read_error = store_error(self.path, error)
                self._watch.read(read_error)
                raise read_error from error
            finally:
                self._idle_readers.append(reader)
        self._watch.read(None)
        return result

    @contextlib.asynccontextmanager
    async def _no_readers(self) -> AsyncIterator[None]:
        """Exclude reads of this process for the duration of the block."""
        async with contextlib.AsyncExitStack() as slots:
            for _ in range(READERS):
                await slots.enter_async_context(self._reader_slots)
            yield

    async def _keep_wal_short(self, checkpointer: ConnectionThread) -> None:
        wal = self.path.with_name(self.path.name + "-wal")
        while True:
            await asyncio.sleep(CHECKPOINT_INTERVAL_SECONDS)
            with self._watch.checkpointing():
                await checkpointer.run(sqlite.checkpoint)
                if file_size(wal) > WAL_KEPT_BYTES and not await checkpointer.run(sqlite.truncate_wal):
                    # There is always a read in progress: block new reads for a moment.
                    async with self._no_readers():
                        await checkpointer.run(sqlite.truncate_wal)
