"""Copies the database while a server writes to it: as it was at one moment, and only what lives.

`VACUUM INTO` reads within one read transaction. So no commit of the server makes it begin anew, however many there are.
It builds each table anew: what was deleted is not in the copy, nor are free pages and bytes that belong to nothing, in
which traces of deleted rows may be readable.

As long as that lasts, the write-ahead log grows, and cannot be emptied. So nothing else is done meanwhile: the copy is
checked later. If the log becomes too large, the copy is given up.
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

MOST_LOG_BYTES = 1024 * 1024 * 1024
"""The copy is given up if the write-ahead log has grown to more than 1 GiB."""

LEFT_FREE_BYTES = 64 * 1024 * 1024
"""The copy is given up if the disk of the database has less than 64 MiB free, and room for the write-ahead log."""

FLUSH_SECONDS = 0.02
"""What was written goes to the disk fifty times a second, so that the commits of a server never wait for much of it."""

LOOK_STEPS = 100_000
"""After so many steps of SQLite's machine it is looked how large the log is: about a hundred times a second."""


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
        ):
            source.set_progress_handler(lambda: bool(_shortage(database, log)), LOOK_STEPS)
            try:
                with _flushed(descriptor):
                    source.execute("VACUUM INTO ?", (str(target),))
            except sqlite3.Error as error:
                if shortage := _shortage(database, log):
                    raise BackupError(shortage) from error
                raise
            # Otherwise the server's writer would have to copy what has gathered in the log, and senders would wait.
            sqlite.checkpoint(copier)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _flushed(descriptor: int) -> Iterator[None]:
    """Have what the block writes to a file on the disk soon after. Raises OSError, at the end of the block."""
    ended = threading.Event()
    failed: list[OSError] = []

    def flush() -> None:
        try:
            while not ended.wait(FLUSH_SECONDS):
                os.fdatasync(descriptor)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if failed:
            raise failed[0]


def _shortage(database: Path, log: Path) -> str:
    """Return in one line why the copy, which keeps the log from being emptied, has to be given up; "" for nothing."""
    size, free = file_size(log), free_bytes(database.parent)
    if size > MOST_LOG_BYTES:
        return (
            f"{log}: has grown to {size:,} bytes while the database was copied: the copy was given up; repeat it while"
            " less is sent, or to a faster disk"
        )
    if free < size + LEFT_FREE_BYTES:
        return f"{database.parent}: only {free:,} bytes are left while the database is copied: the copy was given up"
    return ""


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
