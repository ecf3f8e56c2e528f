"""Errors of the store: when its files cannot be used, and when the disk is full."""

import errno
import math
import os
import sqlite3
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from conclave.store import holders

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

_OF_THE_DISK = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
)
"""Error codes that mean a fault of the files, not of the statement: the low 8 bits of SQLite's extended codes."""

LEAST_BYTES = 64 * 1024
"""Below 64 KiB of free space, an I/O error means that the disk is full.

SQLite says so itself for some files only.
"""


class StoreError(Exception):
    """The store cannot be opened, or could not make a change durable."""


class StoreFullError(StoreError):
    """The disk has no room for a change."""


def free_bytes(folder: Path) -> int:
    """Return how many bytes are free for this user on the file system of ``folder``; 0 if unknown."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def file_size(path: Path) -> int:
    """Return the size of the file ``path`` in bytes; 0 if there is none. A link is not followed."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def is_of_the_disk(error: Exception) -> bool:
    """Tell whether an error is a fault of the store's files, and not of the statement."""
    return isinstance(error, sqlite3.Error) and _code(error) in _OF_THE_DISK


def is_busy(error: Exception) -> bool:
    """Tell whether another connection holds a lock that is needed: the same may work a moment later."""
    return isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_BUSY


def store_error(path: Path, error: Exception) -> StoreError:
    """Return ``error`` as a StoreError of one line, with the path and how many bytes are free."""
    if isinstance(error, StoreError):
        return error
    if is_busy(error):
        return StoreError(f"{path}: {holders.writer_named(path)} holds its write lock: wait for that, or end it")
    free = free_bytes(path.parent)
    full = isinstance(error, OSError) and error.errno in _NO_ROOM
    if isinstance(error, sqlite3.Error):
        full = _code(error) == sqlite3.SQLITE_FULL or (_code(error) == sqlite3.SQLITE_IOERR and free < LEAST_BYTES)
    kind = StoreFullError if full else StoreError
    return kind(f"{path}: {error} ({free:,} bytes are free)")


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


class Watch:
    """Hears whether the store's files can be read and written, and says how much they may take in.

    This one ignores what it hears and sets no limit.
    """

    def wrote(self, error: StoreError | None) -> None:
        """Hear the result of a transaction: why the disk did not take it, or None."""

    def read(self, error: StoreError | None) -> None:
        """Hear the result of a read: why the disk did not give it, or None."""

    def room(self) -> float:
        """Return how many bytes of bodies a transaction may add. Called in the writer's thread, in its transaction."""
        return math.inf

    def checkpointing(self) -> AbstractContextManager[None]:
        """Return the context in which the write-ahead log is shortened. It lets no exception out."""
        return suppress(Exception)
