"""What a store that cannot be used says of it, whoever finds out."""

import errno
import math
import os
import sqlite3
from contextlib import AbstractContextManager, suppress
from pathlib import Path

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

_OF_THE_DISK = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
)
"""Faults of the files, not of the statement; SQLite tells in higher bits what exactly failed."""

LEAST_BYTES = 64 * 1024
"""Where less is free, whatever cannot be written is for want of room: SQLite tells so of some files only."""


class StoreError(Exception):
    """The store cannot be opened, or could not make a change durable."""


class StoreFullError(StoreError):
    """There is no room for a change."""


def free_bytes(folder: Path) -> int:
    """Return how much room the file system of ``folder`` has for this user; 0 if it cannot tell."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def file_size(path: Path) -> int:
    """Return how many bytes the file ``path`` has, 0 if there is none; a link is not followed."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def is_of_the_disk(error: Exception) -> bool:
    """Tell whether an error is one of the files that a store consists of, not of what was asked of it."""
    return isinstance(error, sqlite3.Error) and _code(error) in _OF_THE_DISK


def store_error(path: Path, error: Exception) -> StoreError:
    """Return what ``error`` means for the store at ``path``: a line with the path, and how much room is left."""
    if isinstance(error, StoreError):
        return error
    free = free_bytes(path.parent)
    full = isinstance(error, OSError) and error.errno in _NO_ROOM
    if isinstance(error, sqlite3.Error):
        full = _code(error) == sqlite3.SQLITE_FULL or (_code(error) == sqlite3.SQLITE_IOERR and free < LEAST_BYTES)
    kind = StoreFullError if full else StoreError
    return kind(f"{path}: {error} ({free:,} bytes are free)")


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


class Watch:
    """Hears how the files of a store fare, and says how much they may take in. This one takes no notice."""

    def wrote(self, error: StoreError | None) -> None:
        """Hear of a transaction: what of it the disk did not take, or nothing."""

    def read(self, error: StoreError | None) -> None:
        """Hear of a read in the same way."""

    def room(self) -> float:
        """Return how many bytes of bodies a transaction may add. Asked in the thread and transaction that writes."""
        return math.inf

    def checkpointing(self) -> AbstractContextManager[None]:
        """Return what each shortening of the write-ahead log goes on in, which lets no failure out."""
        return suppress(Exception)
