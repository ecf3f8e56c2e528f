"""Copies the database while a server writes to it: as it was at one moment, page by page.

One read transaction lasts for the whole copy. So no commit of the server makes SQLite begin anew, however many there
are, and the copy is what this transaction sees. SQLite overwrites what is deleted (``secure_delete``), and pages of the
write-ahead log that are older than the moment are not read: what had been erased by then is not in the copy.

As long as the transaction lasts, the write-ahead log grows, and cannot be emptied. So nothing else is done meanwhile:
the copy is checked later. If the log becomes too large, the copy is given up.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from conclave.backup.files import CHUNK_BYTES, FLUSHED_BYTES
from conclave.backup.manifest import BackupError
from conclave.store import sqlite
from conclave.store.faults import file_size, free_bytes

MOST_LOG_BYTES = 1024 * 1024 * 1024
"""The copy is given up if the write-ahead log has grown to more than 1 GiB."""

LEFT_FREE_BYTES = 64 * 1024 * 1024
"""The copy is given up if the disk of the database has less than 64 MiB free, and room for the write-ahead log."""

_PRAGMAS = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
"""
"""Nobody needs a copy that was not finished, and what is written goes to the disk by steps."""


def copy(database: Path, target: Path) -> None:
    """Copy the database into the new file ``target``, which is on the disk then.

    No cleanup run may be under way: it could not empty the write-ahead log. Raises BackupError, StoreError,
    sqlite3.Error and OSError.
    """
    log = database.with_name(database.name + "-wal")
    descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with (
            closing(sqlite.connect(database)) as copier,
            closing(sqlite.connect(database, readonly=True)) as source,
            closing(sqlite3.connect(target, isolation_level=None)) as copied,
        ):
            source.execute("BEGIN")
            page_bytes = source.execute("PRAGMA page_size").fetchone()[0]
            source.execute("SELECT 1 FROM sqlite_schema").fetchone()  # from here on, the moment is held
            copied.executescript(_PRAGMAS)

            def flush(*_: int) -> None:
                os.fdatasync(descriptor)
                _require_room(database, log)

            source.backup(copied, pages=FLUSHED_BYTES // page_bytes, progress=flush)
            source.execute("ROLLBACK")
            # Otherwise the server's writer would have to copy what has gathered in the log, and senders would wait.
            sqlite.checkpoint(copier)
            copied.execute("PRAGMA journal_mode = DELETE").fetchone()  # so that whoever reads it makes no other files
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _require_room(database: Path, log: Path) -> None:
    """Raise BackupError if the write-ahead log takes too much, since the copy keeps it from being emptied."""
    size = file_size(log)
    if size > MOST_LOG_BYTES:
        raise BackupError(
            f"{log}: has grown to {size:,} bytes while the database was copied: the copy was given up; repeat it while"
            " less is sent, or to a faster disk"
        )
    free = free_bytes(database.parent)
    if free < size + LEFT_FREE_BYTES:
        raise BackupError(
            f"{database.parent}: only {free:,} bytes are left while the database is copied: the copy was given up"
        )


def size_of(database: Path) -> int:
    """Return about how many bytes a copy takes now. Raises StoreError and sqlite3.Error."""
    with closing(sqlite.connect(database, readonly=True)) as connection:
        pages, page_bytes = (connection.execute(f"PRAGMA {each}").fetchone()[0] for each in ("page_count", "page_size"))
        return int(pages * page_bytes) + CHUNK_BYTES


def read_rows(copied: Path) -> dict[str, int]:
    """Check a copy, and return how many rows each table has. Raises BackupError and sqlite3.Error."""
    with closing(sqlite.connect(copied, readonly=True)) as connection:
        found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise BackupError(f"{copied}: SQLite finds it damaged: {' '.join(found.split())}")
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in sorted(names)}
