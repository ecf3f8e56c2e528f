"""Copies the database while a server writes to it, without traces of deleted rows.

`VACUUM INTO` reads in one transaction, so commits of the server do not restart it. It rebuilds each table, so the copy
has no free pages or unused bytes in which deleted rows may be readable.

During the copy the write-ahead log grows and cannot be emptied. So the copy is verified afterwards, and aborted if the
log becomes too large.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from conclave.backup.files import CHUNK_BYTES
from conclave.backup.manifest import BackupError
from conclave.store.engine import sqlite
from conclave.store.engine.faults import file_size, free_bytes

MAX_LOG_BYTES = 1024 * 1024 * 1024
"""The copy is aborted if the write-ahead log exceeds 1 GiB."""

LEFT_FREE_BYTES = 64 * 1024 * 1024
"""The copy is aborted if the database's disk has less free space than the size of the write-ahead log plus 64 MiB."""

FLUSH_SECONDS = 0.02
"""The copy is flushed fifty times a second, so that commits of the server do not wait for large writes."""

CHECK_STEPS = 100_000
"""The steps of SQLite's virtual machine between two checks of the log's size; about a hundred checks a second."""


def copy(database: Path, target: Path) -> None:
    """Copy the database into the new file ``target``, and sync it.

    No cleanup run may be active, since it could not empty the write-ahead log. Raises BackupError, StoreError,
    sqlite3.Error and OSError.
    """
    log = database.with_name(database.name + "-wal")
    descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with (
            closing(sqlite.connect(database)) as copier,
            closing(sqlite.connect(database, readonly=True)) as source,
        ):
            source.set_progress_handler(lambda: bool(_shortage(database, log)), CHECK_STEPS)
            try:
                with _flush_regularly(descriptor):
                    source.execute("VACUUM INTO ?", (str(target),))
            except sqlite3.Error as error:
                if shortage := _shortage(database, log):
                    raise BackupError(shortage) from error
                raise
            # Otherwise the server's writer would checkpoint the large log, and senders would wait.
            sqlite.checkpoint(copier)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _flush_regularly(descriptor: int) -> Iterator[None]:
    """Context manager that flushes a file regularly. Raises OSError at the end of the block."""
    is_done = threading.Event()
    errors: list[OSError] = []

    def flush() -> None:
        try:
            while not is_done.wait(FLUSH_SECONDS):
                os.fdatasync(descriptor)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()
        if errors:
            raise errors[0]


def _shortage(database: Path, log: Path) -> str:
    """Return in one line the reason to abort the copy, or ""."""
    size, free = file_size(log), free_bytes(database.parent)
    if size > MAX_LOG_BYTES:
        return (
            f"{log}: has grown to {size:,} bytes while the database was copied: the copy was aborted; repeat it while"
            " less is sent, or to a faster disk"
        )
    if free < size + LEFT_FREE_BYTES:
        return f"{database.parent}: only {free:,} bytes are left while the database is copied: the copy was aborted"
    return ""


def size_of(database: Path) -> int:
    """Return the approximate size of a copy in bytes. Raises StoreError and sqlite3.Error."""
    with closing(sqlite.connect(database, readonly=True)) as connection:
        pages, page_bytes = (connection.execute(f"PRAGMA {each}").fetchone()[0] for each in ("page_count", "page_size"))
        return int(pages * page_bytes) + CHUNK_BYTES


def read_rows(copied: Path) -> dict[str, int]:
    """Check a copy, and return the number of rows of each table. Raises BackupError and sqlite3.Error."""
    with closing(sqlite.connect(copied, readonly=True)) as connection:
        outcome = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if outcome != "ok":
            raise BackupError(f"{copied}: SQLite finds it damaged: {' '.join(outcome.split())}")
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in sorted(names)}
