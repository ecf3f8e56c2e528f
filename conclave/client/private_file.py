"""SQLite files that nobody else may read, and in which nothing stays that was erased."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from conclave.client.errors import DiskError

BUSY_SECONDS = 10.0
"""Another process that has the same file open is waited for up to 10 seconds."""

_FULL = 1

FULL = "the disk is full"

_UNWRITABLE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)

# With the journal of before-images, which is emptied at each commit, no log is left that has what was erased.
_PRAGMAS = """
PRAGMA secure_delete = ON;
PRAGMA journal_mode = TRUNCATE;
PRAGMA synchronous = FULL;
PRAGMA temp_store = MEMORY;
PRAGMA foreign_keys = ON;
"""


def open_private(path: Path | None, busy_seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
    """Open the file at ``path``, made with mode 0600 if it is not there, or a database in memory.

    The connection is in autocommit mode. Raises OSError and sqlite3.Error.
    """
    if path:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        path.chmod(0o600)  # SQLite gives its journal the same mode
    connection = sqlite3.connect(
        str(path) if path else ":memory:", isolation_level=None, timeout=busy_seconds, check_same_thread=False
    )
    try:
        connection.executescript(_PRAGMAS)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def enable_auto_vacuum(connection: sqlite3.Connection) -> None:
    """Have each commit cut off the pages that it frees. A file that does not is made anew, in memory.

    What a transaction writes to a page that was free has no before-image. So it would stay there if a crash or a full
    disk ends the transaction: a text or a key that nothing refers to, for as long as the file exists. What it has added
    to the end of the file is cut off.
    """
    if connection.execute("PRAGMA auto_vacuum").fetchone()[0] != _FULL:
        connection.execute("PRAGMA auto_vacuum = FULL")
        # Another process uses it, the disk is full, a page is rotten, memory is short: next time. It serves as it is.
        with suppress(sqlite3.Error, MemoryError):
            connection.execute("VACUUM")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Change the file in the block, all or nothing; it is on the disk at the end.

    Raises DiskError if it cannot be written, and sqlite3.Error.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest says more of the same
        if code not in _UNWRITABLE:
            raise
        raise DiskError(FULL if code == sqlite3.SQLITE_FULL else f"the disk cannot be written: {error}") from error
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
