"""SQLite files that only their owner can read, and that overwrite erased data."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from conclave.client.errors import DiskError

BUSY_SECONDS = 10.0
"""How long to wait for another process that has locked the file."""

_AUTO_VACUUM_FULL = 1

FULL = "the disk is full"

_UNWRITABLE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)

# A rollback journal is truncated at each commit. A write-ahead log would keep erased data.
_PRAGMAS = """
PRAGMA secure_delete = ON;
PRAGMA journal_mode = TRUNCATE;
PRAGMA synchronous = FULL;
PRAGMA temp_store = MEMORY;
PRAGMA foreign_keys = ON;
"""


def open_private(path: Path | None, busy_seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
    """Open the file at ``path``, created with mode 0600 if it does not exist; None: a database in memory.

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
    """Make each commit truncate the pages that it frees. A file without this setting is rebuilt.

    The rollback journal has no copy of a free page. After a transaction that a crash or a full disk ends, data that
    it wrote to free pages would stay in the file: a text or a key without a reference. Appended pages are truncated.
    """
    if connection.execute("PRAGMA auto_vacuum").fetchone()[0] != _AUTO_VACUUM_FULL:
        connection.execute("PRAGMA auto_vacuum = FULL")
        # Another process uses the file, the disk is full, a page is damaged, or memory is short: retried at next start.
        with suppress(sqlite3.Error, MemoryError):
            connection.execute("VACUUM")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in a transaction, which is written to the disk at the end.

    Raises DiskError if the file cannot be written, and sqlite3.Error.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary result code
        if code not in _UNWRITABLE:
            raise
        raise DiskError(FULL if code == sqlite3.SQLITE_FULL else f"the disk cannot be written: {error}") from error
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
