"""SQLite connections with the common pragmas, write transactions, and checkpoints."""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec

from conclave.events import News
from conclave.failpoints import reach
from conclave.store.engine import news
from conclave.store.engine.connection import StoreConnection, of_store
from conclave.store.engine.faults import is_busy, open_error

P = ParamSpec("P")

DeliverNews = Callable[[sqlite3.Connection, list[News]], None]
"""Delivers the news of a transaction, inside the transaction."""


Step = Callable[[], bool]
"""A short piece of work inside a write transaction; it returns whether it must be called again."""


def once(fn: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> bool:
    """Call ``fn`` as a Step that is not repeated."""
    fn(*args, **kwargs)
    return False


def values(row: object) -> tuple[Any, ...]:
    """Return the fields of a dataclass as the values of a row."""
    return tuple(vars(row).values())  # ``astuple`` makes deep copies, which are slower than the insert


LOCK_WAIT_SECONDS = 30.0
"""A write fails if another process holds the write lock for more than 30 seconds."""


ROWS_PER_STATEMENT = 64
"""A statement inserts at most 64 rows."""


CACHED_STATEMENTS = 256
"""A connection caches 256 compiled statements. ``insert_many`` has one for each number of rows."""


LOCK_POLL_SECONDS = 0.00025
"""The write lock is polled four times a millisecond: cleanup releases it for 1.5 ms at a time."""


_PRAGMAS = """
PRAGMA secure_delete = ON;
PRAGMA foreign_keys = ON;
PRAGMA synchronous = FULL;
PRAGMA temp_store = MEMORY;
PRAGMA busy_timeout = 0;
"""


@contextmanager
def without_zeroing(connection: sqlite3.Connection) -> Iterator[None]:
    """Do not overwrite pages that are freed in the block.

    For ciphertext whose keys are destroyed. Overwriting would write each page of a large body to the log, for which
    there may be no room.
    """
    connection.execute("PRAGMA secure_delete = FAST")
    try:
        yield
    finally:
        connection.execute("PRAGMA secure_delete = ON")


def connect(path: Path, *, readonly: bool = False, frozen: bool = False) -> StoreConnection:
    """Open a connection to an existing database, with the common pragmas.

    ``readonly``: leave the files unchanged, even when closing the last connection to a write-ahead log left by a crash.
    ``frozen``: the database must not be open in any process, and must have no log; no file is created beside it. The
    connection is in autocommit mode: the caller opens transactions, see ``begin_immediate``. Raises StoreError.
    """
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={'ro' if readonly else 'rw'}{'&immutable=1' if frozen else ''}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=CACHED_STATEMENTS,
            factory=StoreConnection,
        )
        connection.executescript(_PRAGMAS)
    except sqlite3.Error as error:
        raise open_error(path, error) from error
    connection.row_factory = sqlite3.Row
    return connection


def is_idle(connection: sqlite3.Connection) -> bool:
    """Return whether no transaction and no statement is open on ``connection``.

    SQLite has no function to find open statements. But an interrupt stays in effect while any statement is open, so
    that the next statement fails. Open statements cannot be read any further.
    """
    if connection.in_transaction:
        return False
    connection.interrupt()
    try:
        connection.execute("SELECT 1").fetchone()
    except sqlite3.Error:
        return False
    return True


def begin_immediate(connection: sqlite3.Connection, patience: float = LOCK_WAIT_SECONDS) -> None:
    """Take the write lock, trying every LOCK_POLL_SECONDS while another process holds it.

    SQLite's own busy handler waits up to 100 ms between two tries, which is too slow. Raises sqlite3.OperationalError
    after ``patience`` seconds, or after the connection's ``waits_until``.
    """
    store_connection = of_store(connection)
    deadline = time.monotonic() + patience
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > min(deadline, store_connection.waits_until):
                raise
            time.sleep(LOCK_POLL_SECONDS)
        else:
            return


def placeholders(values: Collection[Any]) -> str:
    """Return the question marks for ``values`` (at most some thousands) in a statement: ``IN (?, ?, ?)``."""
    return ", ".join("?" * len(values))


def insert_many(
    connection: sqlite3.Connection, into: str, rows: Sequence[tuple[Any, ...]], most: int = ROWS_PER_STATEMENT
) -> None:
    """Insert ``rows``, all as long as the first, with few statements. ``into``: ``INSERT INTO table (columns)``.

    A statement inserts ``most``, or 32, 16, ... rows, so that few statements are compiled and cached. A cached
    statement keeps the values last bound to it.
    """
    row_placeholders = f"({placeholders(rows[0])})" if rows else ""
    count, begin = most, 0
    while begin < len(rows):
        while count > len(rows) - begin:
            count //= 2
        values = [value for row in rows[begin : begin + count] for value in row]
        connection.execute(f"{into} VALUES {', '.join([row_placeholders] * count)}", values)
        begin += count


@contextlib.contextmanager
def write_transaction(
    connection: sqlite3.Connection, deliver: DeliverNews = news.add_all, patience: float = LOCK_WAIT_SECONDS
) -> Iterator[None]:
    """Hold the write lock for the block; commit at its end, roll back if it raises.

    All write transactions of all processes use this. Just before the commit, ``deliver`` gets the transaction's news,
    if any. The default puts them into the outbox; the server publishes them itself. ``patience``: see
    ``begin_immediate``. The last action is to return the connection's ``pages_to_return``, see ``_return_pages``.
    """
    begin_immediate(connection, patience)
    store_connection = of_store(connection)
    store_connection.announced = []
    store_connection.pages_to_return = 0
    try:
        yield
        if store_connection.announced:
            deliver(connection, store_connection.announced)
        if store_connection.pages_to_return:
            _return_pages(connection, store_connection.pages_to_return)
        connection.execute("COMMIT")
        if store_connection.keys:
            store_connection.keys.confirm()
    except BaseException:
        if store_connection.keys:
            store_connection.keys.roll_back()
        raise
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _return_pages(connection: sqlite3.Connection, max_pages: int) -> None:
    """Return at most ``max_pages`` free pages to the file system. It must be the last action of the transaction.

    SQLite moves the file's last pages to free ones, and truncates the file at the commit. ``incremental_vacuum(N)``
    frees a page for each row that is fetched, so it is called for one page at a time.
    """
    free_pages: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    for _ in range(min(max_pages, free_pages)):
        connection.execute("PRAGMA incremental_vacuum(1)").fetchall()
    reach("erase.freed")


def checkpoint(connection: sqlite3.Connection) -> None:
    """Checkpoint as much of the WAL as open readers allow, without waiting for them."""
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def truncate_wal(connection: sqlite3.Connection) -> bool:
    """Checkpoint the WAL and truncate its file; return whether that succeeded.

    A passive checkpoint comes first: TRUNCATE would hold the write lock while it waits for readers. So it is tried only
    when there is nothing left to copy, and without waiting.
    """
    checkpoint(connection)
    busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy
