"""Errors of the store: unusable files and full disks.

The holders of file locks are read from /proc/locks. The database file itself is not opened: closing it would release
the locks that SQLite has on it in this process.
"""

import errno
import math
import os
import sqlite3
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

from conclave.logs.lines import visible

_LOCKS = Path("/proc/locks")
_FIELDS = 8

_WRITE_LOCK = 120
"""The byte of the ``-shm`` file that SQLite locks for the writer, with a write-ahead log."""


class HeldLock(NamedTuple):
    """A file lock that some process holds."""

    inode: str
    kind: str
    is_to_write: bool
    pid: int
    """0 or -1 if unknown."""
    first: int
    """The first locked byte."""


def held_locks() -> list[HeldLock] | None:
    """Return all file locks; None if they cannot be read, as on other systems than Linux."""
    try:
        lines = _LOCKS.read_text(encoding="ascii")
    except OSError:
        return None
    return [
        HeldLock(fields[5].rpartition(":")[2], fields[1], fields[3] == "WRITE", int(fields[4]), int(fields[6]))
        for fields in map(str.split, lines.splitlines())
        if len(fields) == _FIELDS  # lines of waiting processes have one more field
    ]


def of_file(locks: list[HeldLock], path: Path) -> list[HeldLock]:
    """Return the locks on the file ``path`` out of ``locks``; empty if the file does not exist."""
    try:
        inode = str(path.stat().st_ino)
    except OSError:
        return []
    return [each for each in locks if each.inode == inode]


def write_lock_holder(database: Path) -> int | None:
    """Return the pid of the process that holds the write lock of a database; None if unknown or not locked."""
    shared = of_file(held_locks() or [], database.with_name(database.name + "-shm"))
    return next((each.pid for each in shared if each.is_to_write and each.first == _WRITE_LOCK and each.pid > 0), None)


def process_name(pid: int) -> str:
    """Return a description of a process for operators: its pid, and its program if known."""
    try:
        program = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        program = ""
    return f"process {pid} ({visible(program)})" if program else f"process {pid}"


def write_lock_holder_name(database: Path) -> str:
    """Return a description of the process that holds the write lock of a database, as far as it is known."""
    pid = write_lock_holder(database)
    return process_name(pid) if pid else "another process"


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)

_DISK_ERRORS = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
)
"""Error codes of file problems, as opposed to faulty statements: the low 8 bits of SQLite's extended codes."""

MIN_FREE_BYTES = 64 * 1024
"""Below 64 KiB of free space, an I/O error means that the disk is full.

SQLite reports a full disk as such for some files only.
"""


class StoreError(Exception):
    """The store cannot be opened, or could not make a change durable."""


class StoreFullError(StoreError):
    """The disk has no room for a change."""


def free_bytes(folder: Path) -> int:
    """Return the free bytes, for this user, on the file system of ``folder``; 0 if unknown."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize


def has_inodes(folder: Path) -> bool:
    """Return whether the file system of ``folder`` has a free inode, or does not count them."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return True
    return not status.f_files or status.f_favail > 0  # 0 files: not counted


def free_text(folder: Path) -> str:
    """Return a text with the free bytes on the file system of ``folder``, and whether it lacks inodes."""
    try:
        os.statvfs(folder)
    except OSError as error:
        return f"free space unknown: {error.strerror}"
    return f"{free_bytes(folder):,} bytes are free{'' if has_inodes(folder) else ', but no inode for a new file'}"


def file_size(path: Path) -> int:
    """Return the size of the file ``path`` in bytes; 0 if it is missing. Links are not followed."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def is_gone(path: Path) -> bool:
    """Return whether ``path`` does not exist; False if that cannot be determined."""
    try:
        path.lstat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


def is_disk_error(error: Exception) -> bool:
    """Return whether an error is caused by the store's files, not by the statement."""
    return isinstance(error, sqlite3.Error) and _code(error) in _DISK_ERRORS


def is_busy(error: Exception) -> bool:
    """Return whether another connection holds a required lock, so that a retry may succeed."""
    return isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_BUSY


def store_error(path: Path, error: Exception) -> StoreError:
    """Return ``error`` as a StoreError of one line, with the path and the free bytes."""
    if isinstance(error, StoreError):
        return error
    if is_busy(error):
        return StoreError(f"{path}: {write_lock_holder_name(path)} holds its write lock: wait for it, or end it")
    free_space = free_bytes(path.parent)
    is_full = isinstance(error, OSError) and error.errno in _NO_ROOM
    if isinstance(error, sqlite3.Error):
        is_full = _code(error) == sqlite3.SQLITE_FULL or (
            _code(error) == sqlite3.SQLITE_IOERR and free_space < MIN_FREE_BYTES
        )
    kind = StoreFullError if is_full else StoreError
    return kind(f"{path}: {error} ({free_text(path.parent)})")


def open_error(path: Path, error: sqlite3.Error) -> StoreError:
    """Return the error of a database that cannot be opened, with more details than SQLite gives."""
    details = ""
    if _code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL):
        details = f" ({_obstacle(path)})"
    return StoreError(f"{path}: cannot be opened as a database: {error}{details}")


def _obstacle(path: Path) -> str:
    """Return a likely reason why ``path`` cannot be opened. Even readers create the WAL index beside it."""
    folder = path.parent
    try:
        os.close(os.open(folder, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in _NO_DESCRIPTOR:
            return f"{error.strerror}: raise the limit, as by ulimit -n"
    if path.exists() and not os.access(path, os.R_OK):
        return f"{path}: cannot be read; is it another user's?"
    if not os.access(folder, os.W_OK):
        return f"{folder}: cannot be written to; is it another user's, or its disk read-only?"
    return free_text(folder)


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


class Watch:
    """Observes the results of reads and writes, and limits the size of new bodies.

    The base class ignores the results and sets no limit.
    """

    def wrote(self, error: StoreError | None) -> None:
        """Handle the result of a transaction: the disk's error, or None."""

    def read(self, error: StoreError | None) -> None:
        """Handle the result of a read: the disk's error, or None."""

    def room(self) -> float:
        """Return how many bytes of bodies a transaction may add. Called in the writer's thread, in its transaction."""
        return math.inf

    def checkpointing(self) -> AbstractContextManager[None]:
        """Return the context manager for a checkpoint, which suppresses exceptions."""
        return suppress(Exception)
