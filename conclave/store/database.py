"""The hot store: one writer that batches, a few readers, migrations, checkpoints, a clean close.

A store function is synchronous and takes the ``sqlite3`` connection first; ``write`` and ``read`` run it
on the thread that owns a connection. Writes that wait at the same time share one transaction and one
fsync, each in a savepoint of its own; nobody is answered before the commit.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import aiosqlite

from conclave.events import News
from conclave.failpoints import reach
from conclave.logs import get_logger
from conclave.store import outbox, place
from conclave.store.batch import run_all, settle, snapshot
from conclave.store.connection import StoreConnection, of_store
from conclave.store.faults import StoreError, Watch, is_of_the_disk, store_error

log = get_logger(__name__)

Publish = Callable[[list[News]], None]
HandOn = Callable[[sqlite3.Connection, list[News]], None]
"""Takes what a transaction has announced, inside of it."""

Step = Callable[[], bool]
"""A short piece of work inside a write transaction; it returns whether it has to be called again."""

P = ParamSpec("P")
T = TypeVar("T")

READERS = 3
BATCH_LIMIT = 256
LOCK_WAIT_SECONDS = 30.0
WAL_TARGET_BYTES = 4 * 1024 * 1024
CHECKPOINT_INTERVAL_SECONDS = 1.0
WAL_LIMIT_BYTES = 8 * 1024 * 1024
"""The writer itself copies a longer one into the database: what is acknowledged must find room there, although the disk
fills up meanwhile. Cleanup's reserve is room for so much, and for more."""

PAGE_BYTES = 4096
OLDEST_SQLITE = (3, 37, 0)

_PRAGMAS = """
PRAGMA secure_delete = ON;
PRAGMA foreign_keys = ON;
PRAGMA synchronous = FULL;
PRAGMA temp_store = MEMORY;
PRAGMA busy_timeout = 0;
"""


def connect(path: Path, *, readonly: bool = False) -> StoreConnection:
    """Open a connection to an existing database, with the pragmas that every connection of ours has.

    A ``readonly`` one leaves the files as they are, even where it is the last to close a log that a crash left.
    Autocommit mode: transactions are opened by hand, see ``begin_immediate``. Raises StoreError.
    """
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={'ro' if readonly else 'rw'}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            factory=StoreConnection,
        )
        connection.executescript(_PRAGMAS)
    except sqlite3.Error as error:
        raise StoreError(f"{path}: cannot be opened as a database: {error}") from error
    connection.row_factory = sqlite3.Row
    return connection


def begin_immediate(connection: sqlite3.Connection) -> None:
    """Take the write lock, polling every millisecond while another process holds it.

    SQLite's own busy handler backs off to 100 ms, which a sender would feel. Raises
    sqlite3.OperationalError after LOCK_WAIT_SECONDS.
    """
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.001)
        else:
            return


def places(values: Collection[Any]) -> str:
    """Return the question marks for ``values`` (at most some thousands) in a statement: ``IN (?, ?, ?)``."""
    return ", ".join("?" * len(values))


@contextlib.contextmanager
def write_transaction(connection: sqlite3.Connection, hand_on: HandOn = outbox.add_all) -> Iterator[None]:
    """Hold the write lock for the block; commit at its end, roll back if it raises.

    The one place where a transaction of any process ends. ``hand_on`` is given what was announced in it, if anything,
    just before the commit: to the outbox, unless this process itself has who listens.
    """
    begin_immediate(connection)
    told = of_store(connection)
    told.announced = []
    try:
        yield
        if told.announced:
            hand_on(connection, told.announced)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def migrations() -> list[tuple[int, str]]:
    """Return the migrations in order: schema version reached, SQL."""
    files = resources.files("conclave.store.migrations").iterdir()
    return sorted((int(each.name[:4]), each.read_text()) for each in files if each.name.endswith(".sql"))


def prepare(path: Path) -> None:
    """Bring the database at ``path`` to this program's schema; make it if there is none.

    Raises StoreError: not one of ours, or one of a newer program, or none that can be written.
    """
    create(path)
    place.require_writable(path)
    with _one_line_errors(path), contextlib.closing(connect(path)) as connection:
        _migrate(connection, path)


def create(path: Path) -> None:
    """Make the database at ``path`` if there is none; it is there as a whole, or not at all. Raises StoreError."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old: 3.37 or newer is needed")
    if place.is_taken(path):
        return
    new = path.with_name(f"{path.name}.new")
    with _one_line_errors(path):
        place.remove_unmade(new)
        new.touch(mode=0o600)
        with contextlib.closing(connect(new)) as connection:
            _migrate(connection, new)
        new.rename(path)
    log.info("database_created", database=str(path))


def require_current(path: Path, *, writing: bool = False) -> None:
    """Raise StoreError unless there is a database of exactly this program's schema at ``path``.

    With ``writing`` it has to be one that can be written, too. Only the server creates and migrates: another process
    must not change the schema under a running one.
    """
    if not place.is_taken(path):
        raise StoreError(f"{path}: no such database; `conclave serve` creates it")
    if writing:
        place.require_writable(path)
    with _one_line_errors(path), contextlib.closing(connect(path, readonly=not writing)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if writing:
            _require_wal(connection)
    newest = migrations()[-1][0]
    if version != newest:
        raise StoreError(
            f"{path}: its schema version is {version}, this program's is {newest}: run `conclave serve` of this"
            " program on it first, or use the program that serves it"
        )


@contextlib.contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise store_error(path, error) from error


def _require_wal(connection: sqlite3.Connection) -> None:
    """Have the write-ahead log in use: a copy that `VACUUM INTO` has made, as of a backup, is without."""
    connection.execute("PRAGMA journal_mode = WAL")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    steps = migrations()
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > steps[-1][0]:
        raise StoreError(
            f"{path}: its schema version is {version}, this program knows up to {steps[-1][0]}: use a newer Conclave"
        )
    if version == 0:
        if connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
            raise StoreError(f"{path}: is a database, but not one of Conclave's")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    _require_wal(connection)
    for number, script in steps:
        if number > version:
            with write_transaction(connection):
                for statement in _statements(script):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number}")


def _statements(script: str) -> list[str]:
    """Split ``script``; executescript would commit the transaction that a migration runs in."""
    statements, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements


def checkpoint(connection: sqlite3.Connection) -> None:
    """Copy as much of the WAL into the database as no reader keeps from it; nobody has to wait for that."""
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def truncate_wal(connection: sqlite3.Connection) -> bool:
    """Copy the WAL into the database and empty its file; tell whether that succeeded.

    PASSIVE first: TRUNCATE with a reader open would hold the write lock as long as it waits, so it is
    tried without any waiting, when there is nothing left to copy.
    """
    checkpoint(connection)
    busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


class _Owner(aiosqlite.Connection):
    """An aiosqlite connection that runs whole functions on its thread: one hop a call, not one a statement."""

    def __init__(self, path: Path) -> None:
        super().__init__(partial(connect, path), iter_chunk_size=64)
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
        """Use ``open``."""
        self.path = path
        self._publish = publish
        self._watch = watch
        self._file = _identity(path)
        self._waiting: list[_Write] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._idle_readers: list[_Owner] = []
        self._reader_slots = asyncio.Semaphore(READERS)  # first come, first served: nobody waits for ever
        self._owners: list[_Owner] = []
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, path: Path, publish: Publish = lambda _: None, watch: Watch | None = None) -> Self:
        """Open the store at ``path``, creating or migrating it. Raises StoreError.

        ``publish`` is told what transactions announce, after each commit and before its callers go on.
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
            asyncio.create_task(self._write_batches(writer)),
            asyncio.create_task(self._keep_wal_short(checkpointer)),
        ]

    async def _open_owner(self) -> _Owner:
        owner = _Owner(self.path)
        self._owners.append(owner)
        await owner
        return owner

    async def close(self) -> None:
        """Finish what waits, move the WAL into the database, and let go of every file."""
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
            await writer.run(truncate_wal)
        except sqlite3.Error as error:
            log.error("checkpoint_failed", error=str(error))
        finally:
            await self._close_owners()

    async def _close_owners(self) -> None:
        """Close connections; each has a thread that would keep the process from ending."""
        for owner in self._owners:
            await owner.close()

    async def write(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` in a transaction and return its result once that is durable.

        What ``fn`` raises undoes its own changes only. Raises StoreError if the commit failed: then
        nothing of the whole batch was applied.
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

    async def _write_batches(self, writer: _Owner) -> None:
        while self._waiting or not self._closing:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
                continue
            batch, self._waiting = self._waiting[:BATCH_LIMIT], self._waiting[BATCH_LIMIT:]
            announced: list[News] = []
            try:
                outcomes, announced = await writer.run(partial(self._run_batch, [each.fn for each in batch]))
            except Exception as error:  # noqa: BLE001 - whatever it was, each caller of the batch must hear of it
                outcomes = [store_error(self.path, error)] * len(batch)
            self._watch.wrote(next((each for each in outcomes if isinstance(each, StoreError)), None))
            self._publish(announced)
            for each, outcome in zip(batch, outcomes, strict=True):
                settle(each.done, outcome)

    def _run_batch(
        self, fns: list[Callable[[sqlite3.Connection], Any]], connection: sqlite3.Connection
    ) -> tuple[list[Any], list[News]]:
        """Run ``fns`` in one transaction, if the database is where it was, and has room. See run_all."""
        announced: list[News] = []
        with write_transaction(connection, lambda _, news: announced.extend(news)):
            if _identity(self.path) != self._file:
                # What is written to the file that is open would be lost with it.
                raise StoreError(f"{self.path}: was moved or replaced while the server runs: put it back, or restart")
            of_store(connection).room = self._watch.room()
            outcomes = run_all(fns, of_store(connection))
            reach("writer.before_commit")
        reach("writer.after_commit")
        return [store_error(self.path, each) if _is_disk(each) else each for each in outcomes], announced

    @contextlib.asynccontextmanager
    async def _no_readers(self) -> AsyncIterator[None]:
        """Have no read under way in this process while the block lasts."""
        async with contextlib.AsyncExitStack() as slots:
            for _ in range(READERS):
                await slots.enter_async_context(self._reader_slots)
            yield

    async def _keep_wal_short(self, checkpointer: _Owner) -> None:
        wal = self.path.with_name(self.path.name + "-wal")
        while True:
            await asyncio.sleep(CHECKPOINT_INTERVAL_SECONDS)
            with self._watch.checkpointing():
                if wal.exists() and wal.stat().st_size > WAL_TARGET_BYTES and not await checkpointer.run(truncate_wal):
                    # Somebody is always reading: hold new reads back for the moment that it takes.
                    async with self._no_readers():
                        await checkpointer.run(truncate_wal)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what file ``path`` is: its device and number there; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_disk(outcome: Any) -> bool:
    return isinstance(outcome, Exception) and is_of_the_disk(outcome)
