"""What SQLite is asked for: connections with our pragmas, write transactions, checkpoints."""

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
from conclave.store.engine.faults import is_busy, not_opened

P = ParamSpec("P")

HandOn = Callable[[sqlite3.Connection, list[News]], None]
"""Takes what a transaction has announced, inside the transaction."""


Step = Callable[[], bool]
"""A short piece of work inside a write transaction; it returns whether it must be called again."""


def done(fn: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> bool:
    """Call ``fn`` as a step that is not called again."""
    fn(*args, **kwargs)
    return False


def values(row: object) -> tuple[Any, ...]:
    """Return the fields of a dataclass as the values of a row."""
    return tuple(vars(row).values())  # ``astuple`` makes deep copies, which takes longer than the insert


LOCK_WAIT_SECONDS = 30.0
"""A write fails if another process holds the write lock for more than 30 seconds."""


ROWS_A_STATEMENT = 64
"""A statement inserts at most 64 rows."""


STATEMENTS = 256
"""A connection keeps 256 statements compiled: those that insert many rows at a time have a text for each number."""


LOCK_POLL_SECONDS = 0.00025
"""Who waits for the write lock asks for it four times a millisecond: cleanup lets go of it for 1.5 ms at a time."""


_PRAGMAS = """
PRAGMA secure_delete = ON;
PRAGMA foreign_keys = ON;
PRAGMA synchronous = FULL;
PRAGMA temp_store = MEMORY;
PRAGMA busy_timeout = 0;
"""


@contextmanager
def not_zeroed(connection: sqlite3.Connection) -> Iterator[None]:
    """Leave pages as they are that become free in the block.

    It is for ciphertext whose keys are destroyed. To overwrite it would write each page of a large body to the log: on
    a full disk there is no room for that.
    """
    connection.execute("PRAGMA secure_delete = FAST")
    try:
        yield
    finally:
        connection.execute("PRAGMA secure_delete = ON")


def connect(path: Path, *, readonly: bool = False, frozen: bool = False) -> StoreConnection:
    """Open a connection to an existing database, with the pragmas that all connections have.

    ``readonly``: the connection leaves the files as they are, even if it is the last to close a write-ahead log that a
    crash left. ``frozen``: no process has the database open, and it has no log: no file appears beside it. The
    connection is in autocommit mode: the caller opens transactions, see ``begin_immediate``. Raises StoreError.
    """
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={'ro' if readonly else 'rw'}{'&immutable=1' if frozen else ''}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=STATEMENTS,
            factory=StoreConnection,
        )
        connection.executescript(_PRAGMAS)
    except sqlite3.Error as error:
        raise not_opened(path, error) from error
    connection.row_factory = sqlite3.Row
    return connection


def is_idle(connection: sqlite3.Connection) -> bool:
    """Return whether no transaction and no statement is open on ``connection``.

    SQLite has no call for the second. But an interrupt lasts as long as any statement is open, and makes each further
    one fail; where none is open, the next statement starts without it. What is open cannot be read any more.
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
    """Take the write lock, and ask for it every LOCK_POLL_SECONDS while another process holds it.

    SQLite's own busy handler waits up to 100 ms between two tries, which a sender would notice. Raises
    sqlite3.OperationalError after ``patience`` seconds, and from the connection's ``waits_until`` on.
    """
    own = of_store(connection)
    deadline = time.monotonic() + patience
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > min(deadline, own.waits_until):
                raise
            time.sleep(LOCK_POLL_SECONDS)
        else:
            return


def places(values: Collection[Any]) -> str:
    """Return the question marks for ``values`` (at most some thousands) in a statement: ``IN (?, ?, ?)``."""
    return ", ".join("?" * len(values))


def insert_many(
    connection: sqlite3.Connection, into: str, rows: Sequence[tuple[Any, ...]], most: int = ROWS_A_STATEMENT
) -> None:
    """Insert ``rows``, all as long as the first, by few statements. ``into``: ``INSERT INTO table (columns)``.

    A statement takes 64, 32, 16, ... rows, at most ``most``. So there are few texts, and each stays compiled. It also
    keeps a copy of the values that it had last, until it gets others.
    """
    place = f"({places(rows[0])})" if rows else ""
    count, begin = most, 0
    while begin < len(rows):
        while count > len(rows) - begin:
            count //= 2
        values = [value for row in rows[begin : begin + count] for value in row]
        connection.execute(f"{into} VALUES {', '.join([place] * count)}", values)
        begin += count


@contextlib.contextmanager
def write_transaction(
    connection: sqlite3.Connection, hand_on: HandOn = news.add_all, patience: float = LOCK_WAIT_SECONDS
) -> Iterator[None]:
    """Hold the write lock for the block; commit at its end, roll back if it raises.

    Every write transaction of every process ends here. Just before the commit, ``hand_on`` gets what the transaction
    announced, if anything. The default puts it into the outbox; the server hands it to its own listeners instead.
    ``patience``: see ``begin_immediate``. The very last are the connection's ``pages_to_return``: see
    ``_return_pages``.
    """
    begin_immediate(connection, patience)
    own = of_store(connection)
    own.announced = []
    own.pages_to_return = 0
    try:
        yield
        if own.announced:
            hand_on(connection, own.announced)
        if own.pages_to_return:
            _return_pages(connection, own.pages_to_return)
        connection.execute("COMMIT")
        if own.keys:
            own.keys.confirm()
    except BaseException:
        if own.keys:
            own.keys.undo()
        raise
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _return_pages(connection: sqlite3.Connection, most: int) -> None:
    """Return at most ``most`` free pages to the file system. Nothing else may follow in the transaction.

    SQLite moves the file's last pages to free places, and cuts them off at the commit. A pragma that is to free several
    pages gives a row for each, and Python takes only the first.
    """
    free: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    for _ in range(min(most, free)):
        connection.execute("PRAGMA incremental_vacuum(1)").fetchall()
    reach("erase.freed")


def checkpoint(connection: sqlite3.Connection) -> None:
    """Copy as much of the WAL into the database as open readers allow, without waiting for them."""
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def truncate_wal(connection: sqlite3.Connection) -> bool:
    """Copy the WAL into the database and empty its file; tell whether that succeeded.

    PASSIVE copies first. TRUNCATE would hold the write lock while it waits for an open reader. So it is tried only when
    nothing is left to copy, and without waiting.
    """
    checkpoint(connection)
    busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy
