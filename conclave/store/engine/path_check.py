"""Checks the path of the database before it is opened, since SQLite's own errors say little."""

import os
import stat
from pathlib import Path

from conclave.store.engine.faults import StoreError

_SIDE_FILES = ("-wal", "-shm", "-journal")

RESTORING = ".restoring"
"""The suffix of the folder beside a database in which a restore works. It is there until the restore is complete."""


class NotWritableError(StoreError):
    """A file of the database cannot be written by this user, or by anybody."""


def is_taken(path: Path) -> bool:
    """Tell whether there is a file that may be a database.

    Raises StoreError if the path has something else, or can have no database.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise StoreError(f"{path}: there is no folder {path.parent}; is its disk mounted?") from None
        return False
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    if stat.S_ISDIR(found.st_mode):
        raise StoreError(f"{path}: is a folder, not a database")
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{path}: is not a file that can hold a database")
    if not found.st_size:
        raise StoreError(f"{path}: is empty, not a database; restore a backup, or remove it to begin with a new one")
    return True


def at_rest(path: Path) -> tuple[int, int] | None:
    """Return size and time of change of a database that no process has open; None: it has a write-ahead log.

    As long as these stay, a connection may take it as frozen, and leaves no files beside it.
    """
    try:
        found = None if path.with_name(path.name + "-wal").exists() else path.stat()
    except OSError:
        return None  # a connection says why it cannot be read
    return (found.st_size, found.st_mtime_ns) if found else None


def require_writable(path: Path) -> None:
    """Raise NotWritableError unless the database at ``path``, its log and its folder can be written."""
    files = [path.with_name(path.name + suffix) for suffix in ("", *_SIDE_FILES)]
    for each in (*filter(Path.exists, files), path.parent):
        if not os.access(each, os.W_OK):
            raise NotWritableError(f"{each}: cannot be written to; is it another user's, or its disk read-only?")


def restoring(path: Path) -> Path:
    """Return the folder in which a restore of the database at ``path`` works."""
    return path.with_name(path.name + RESTORING)


def require_restored(path: Path) -> None:
    """Raise StoreError if a restore of the database at ``path`` has begun and not ended."""
    if os.path.lexists(restoring(path)):
        raise StoreError(f"{path}: a restore has begun and has not ended: repeat `conclave restore`")


def remove_unmade(path: Path) -> None:
    """Remove a database at ``path`` that was never used, with its log files."""
    for suffix in ("", *_SIDE_FILES):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
