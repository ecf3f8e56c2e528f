"""The database: one writer that commits in groups, a few readers, checkpoints, a clean close.

A store function is synchronous and takes the ``sqlite3`` connection first. ``write`` and ``read`` run it on the thread
that owns a connection. Writes that wait at the same time share one transaction and one fsync, see ``writer.py``. A
caller is answered only after the commit.
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
from conclave.store.engine.faults import StoreError, Watch, file_size, is_of_the_disk, store_error
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
"""At most 3 reads run at the same time, each on a connection of its own."""


WAL_KEPT_BYTES = 16 * 1024 * 1024
"""The file of the write-ahead log is cut to nothing if it is larger than 16 MiB.

Otherwise it is kept and written over. A commit that makes a file longer takes about twice as long as one that does not.
"""


CHECKPOINT_INTERVAL_SECONDS = 1.0
"""The write-ahead log is copied into the database once a second."""


WAL_LIMIT_BYTES = 8 * 1024 * 1024
"""The writer itself copies a write-ahead log of more than 8 MiB into the database.

What is acknowledged must find room in the database, even if the disk fills up meanwhile. Cleanup's reserve is room for
this much and for more.
"""


PAGE_BYTES = 4096
"""A page of the database has 4096 bytes: SQLite's default."""


_WRITER_PRAGMAS = f"PRAGMA cache_spill = OFF; PRAGMA wal_autocheckpoint = {WAL_LIMIT_BYTES // PAGE_BYTES}"
"""The writer's changes stay in memory until their commit: SQLite (as 3.40 does) can lose what was committed otherwise.

Where memory is short it writes pages to the log before the commit, and one that changes again once more in its place.
If a savepoint undoes that, checksums of later pages stay zero: after a crash the log ends there, whatever follows.
"""


_READER_PRAGMAS = "PRAGMA query_only = ON; PRAGMA cache_size = -8192"
"""A reader has 8 MiB of pages in memory, not 2: those of the indexes are asked for again and again."""


LOCK_WAIT_SECONDS = 10.0
"""A server that ends waits for at most 10 seconds for another process's write lock."""


TELLING_SECONDS = 1.0
"""Every second it looks whether it waits, until the log has said for whom."""


class Database:
    """The open store of one server process."""

    def __init__(self, path: Path, publish: Publish, watch: Watch, keys: "KeyStore | None" = None) -> None:
        """Prepare only; use ``open`` to get a working store. ``keys``: those of its messages, if there are any."""
        self.path = path
        self.keys = keys
        self.former_policies = FormerPolicies()
        self._publish = publish
        self._watch = watch
        self._idle_readers: list[ConnectionThread] = []
        self._reader_slots = asyncio.Semaphore(READERS)  # served in the order of arrival, so no reader waits for ever
        self._owners: list[ConnectionThread] = []
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

        ``publish`` gets what transactions announce, after the commit and before their callers continue. ``watch`` hears
        how the disk fares. ``keys`` opens the keys of its messages, once its schema is this program's.
        """
        await asyncio.to_thread(prepare, path)
        self = cls(path, publish, watch or Watch(), await asyncio.to_thread(keys))
        try:
            await self._begin()
        except BaseException:
            await self._close_owners()
            raise
        return self

    def open_keys(self) -> "KeyStore":
        """Return the keys of its messages. Raises StoreError: it was opened without."""
        if self.keys is None:
            raise StoreError(f"{self.path}: its keys are not open here")
        return self.keys

    @property
    def written(self) -> Writes:
        """The transactions of the writer so far."""
        return self._writer.done

    @property
    def writes_waiting(self) -> int:
        """How many writes wait for the transaction after the one under way."""
        return self._writer.waiting

    def policy_change(self) -> PolicyChange:
        """Return what a change of one group's policy is told of."""
        return PolicyChange(self.former_policies)

    async def _begin(self) -> None:
        writer = await self._open_owner(_WRITER_PRAGMAS)
        checkpointer = await self._open_owner()
        self._idle_readers = [await self._open_owner(_READER_PRAGMAS) for _ in range(READERS)]
        self._writer = Writer(self.path, writer, self._publish, self._watch)
        self._checkpoints = asyncio.create_task(self._keep_wal_short(checkpointer))

    async def _open_owner(self, pragmas: str = "") -> ConnectionThread:
        def prepare(connection: StoreConnection) -> None:
            connection.executescript(pragmas)
            connection.keys, connection.former_policies = self.keys, self.former_policies

        owner = ConnectionThread(self.path, prepare)
        self._owners.append(owner)
        await owner
        return owner

    def limit_lock_wait(self) -> None:
        """Wait for another process's write lock for LOCK_WAIT_SECONDS more, all writes together. The log says whose.

        For the end of a server: each of its last writes would wait for LOCK_WAIT_SECONDS otherwise.
        """
        self._writer.limit_lock_wait(time.monotonic() + LOCK_WAIT_SECONDS)
        self._logging = asyncio.create_task(self._log_lock_wait())

    async def _log_lock_wait(self) -> None:
        while True:
            await asyncio.sleep(TELLING_SECONDS)
            pid = None if self._writer.is_idle else faults.writer(self.path)
            if pid and pid != os.getpid():
                log.warning("stop_waits", holder=faults.named(pid), most_seconds=LOCK_WAIT_SECONDS)
                return

    async def close(self) -> None:
        """Finish the writes that wait, move the WAL into the database, and close every file."""
        await self._writer.close()
        for task in (self._checkpoints, self._logging):
            if task:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
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
        if self.keys:
            self.keys.close()

    async def write(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` in a transaction and return its result once its changes are durable.

        If ``fn`` raises, only its own changes are undone. Raises StoreError if the commit failed: then nothing of the
        whole transaction was applied.
        """
        return cast(T, await self._writer.write(lambda connection: fn(connection, *args, **kwargs)))

    def begin_joint(
        self, joint: Callable[[sqlite3.Connection, Sequence[I]], Sequence[T | Exception]], item: I, weight: int = 0
    ) -> "asyncio.Future[T]":
        """Begin what ``write_joint`` does. Raises StoreError if the store is closed; all else is the future's."""
        return self._writer.add_joint(joint, item, weight)

    async def write_joint(
        self, joint: Callable[[sqlite3.Connection, Sequence[I]], Sequence[T | Exception]], item: I, weight: int = 0
    ) -> T:
        """Have ``joint`` write ``item``, together with what else it is asked for at the same time: see ``Joint``.

        ``weight``: the bytes of the item. Returns the result, or raises the exception, of ``joint`` for it, once all is
        durable. Raises StoreError as ``write`` does.
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
                if not is_of_the_disk(error):
                    raise
                unreadable = store_error(self.path, error)
                self._watch.read(unreadable)
                raise unreadable from error
            finally:
                self._idle_readers.append(reader)
        self._watch.read(None)
        return result

    @contextlib.asynccontextmanager
    async def _no_readers(self) -> AsyncIterator[None]:
        """Let no read of this process run while the block lasts."""
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
                    # Some read is always under way: hold new reads back for a moment.
                    async with self._no_readers():
                        await checkpointer.run(sqlite.truncate_wal)
