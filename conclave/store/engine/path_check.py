"""Checks the path of the database before it is opened, with clearer errors than SQLite's."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from conclave.store.engine.faults import StoreError

_SIDE_FILES = ("-wal", "-shm", "-journal")

RESTORING = ".restoring"
"""The suffix of a restore's work folder beside the database. It exists until the restore is complete."""


MAX_ATTEMPTS = 3
"""A database is read at most 3 times: again if another process opened it in between."""

T = TypeVar("T")


class NotWritableError(StoreError):
    """A file of the database is not writable."""


def is_taken(path: Path) -> bool:
    """Return whether there is a file at ``path`` that may be a database.

    Raises StoreError if something else is there, or if no database can be created there.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise StoreError(f"{path}: there is no folder {path.parent}; is its disk mounted?") from None
        return False
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    if stat.S_ISDIR(status.st_mode):
        raise StoreError(f"{path}: is a folder, not a database")
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{path}: is not a file that can hold a database")
    if not status.st_size:
        raise StoreError(f"{path}: is empty, not a database; restore a backup, or remove it to create a new one")
    return True


def read_undisturbed(path: Path, read: Callable[[bool], T]) -> T:
    """Return the result of ``read``. It is repeated if another process has opened the database in between.

    ``read``: gets whether to open the database as ``frozen``, which creates no files beside it.
    """
    for _ in range(MAX_ATTEMPTS - 1):
        before = _closed_state(path)
        result = read(before is not None)
        if before is None or before == _closed_state(path):
            return result
    return read(False)  # noqa: FBT003 - a callable's parameter has no name


def _closed_state(path: Path) -> tuple[int, int] | None:
    """Return size and mtime of a database that no process has open; None if it has a write-ahead log."""
    try:
        status = None if path.with_name(path.name + "-wal").exists() else path.stat()
    except OSError:
        return None  # opening it will raise the error
    return (status.st_size, status.st_mtime_ns) if status else None


def require_writable(path: Path) -> None:
    """Raise NotWritableError unless the database at ``path``, its log and its folder can be written."""
    files = [path.with_name(path.name + suffix) for suffix in ("", *_SIDE_FILES)]
    for each in (*filter(Path.exists, files), path.parent):
        if not os.access(each, os.W_OK):
            raise NotWritableError(f"{each}: cannot be written to; is it another user's, or its disk read-only?")


def restoring(path: Path) -> Path:
    """Return the work folder of a restore of the database at ``path``."""
    return path.with_name(path.name + RESTORING)


def require_restored(path: Path) -> None:
    """Raise StoreError if a restore of the database at ``path`` is incomplete."""
    if os.path.lexists(restoring(path)):
        raise StoreError(f"{path}: a restore is incomplete: repeat `conclave restore`")


def remove_incomplete(path: Path) -> None:
    """Remove a database at ``path`` that was never used, with its log files."""
    for suffix in ("", *_SIDE_FILES):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
