"""Errors of the store: when its files cannot be used, and when the disk is full.

Which processes hold locks on files is read from the kernel's list, and no other file is opened: closing a database's
file would end the locks that SQLite has on it in this process.
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
"""The byte of the file ``-shm`` that SQLite locks for the process that writes to a database with a write-ahead log."""


class HeldLock(NamedTuple):
    """A lock that is held."""

    inode: str
    kind: str
    is_to_write: bool
    pid: int
    """0 or -1 where the kernel does not tell."""
    first: int
    """The byte at which it begins."""


def held() -> list[HeldLock] | None:
    """Return all locks that are held; None if that cannot be told, as elsewhere than on Linux."""
    try:
        listed = _LOCKS.read_text(encoding="ascii")
    except OSError:
        return None
    return [
        HeldLock(fields[5].rpartition(":")[2], fields[1], fields[3] == "WRITE", int(fields[4]), int(fields[6]))
        for fields in map(str.split, listed.splitlines())
        if len(fields) == _FIELDS  # who waits for a lock has an arrow more
    ]


def of_file(locks: list[HeldLock], path: Path) -> list[HeldLock]:
    """Return those of ``locks`` that are on the file ``path``; none if there is no such file."""
    try:
        inode = str(path.stat().st_ino)
    except OSError:
        return []
    return [each for each in locks if each.inode == inode]


def writer(database: Path) -> int | None:
    """Return the number of the process that holds the write lock of a database; None if unknown, or none does."""
    shared = of_file(held() or [], database.with_name(database.name + "-shm"))
    return next((each.pid for each in shared if each.is_to_write and each.first == _WRITE_LOCK and each.pid > 0), None)


def named(pid: int) -> str:
    """Name a process for operators: its number, and its program where that can be told."""
    try:
        program = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        program = ""
    return f"process {pid} ({visible(program)})" if program else f"process {pid}"


def writer_named(database: Path) -> str:
    """Name who holds the write lock of a database, as far as that can be told."""
    pid = writer(database)
    return named(pid) if pid else "another process"


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)

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


def has_inodes(folder: Path) -> bool:
    """Tell whether a file can still be made on the file system of ``folder``, as far as its inodes go."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return True
    return not found.f_files or found.f_favail > 0  # some file systems do not count them


def free_text(folder: Path) -> str:
    """Say what is free on the file system of ``folder``, and if that is no help."""
    try:
        os.statvfs(folder)
    except OSError as error:
        return f"how much is free is not known: {error.strerror}"
    return f"{free_bytes(folder):,} bytes are free{'' if has_inodes(folder) else ', but no inode for a new file'}"


def file_size(path: Path) -> int:
    """Return the size of the file ``path`` in bytes; 0 if there is none. A link is not followed."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def is_gone(path: Path) -> bool:
    """Tell whether there is no file or folder ``path``: what cannot be looked at is no such one."""
    try:
        path.lstat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


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
        return StoreError(f"{path}: {writer_named(path)} holds its write lock: wait for that, or end it")
    free = free_bytes(path.parent)
    full = isinstance(error, OSError) and error.errno in _NO_ROOM
    if isinstance(error, sqlite3.Error):
        full = _code(error) == sqlite3.SQLITE_FULL or (_code(error) == sqlite3.SQLITE_IOERR and free < LEAST_BYTES)
    kind = StoreFullError if full else StoreError
    return kind(f"{path}: {error} ({free_text(path.parent)})")


def not_opened(path: Path, error: sqlite3.Error) -> StoreError:
    """Return the error of a database that cannot be opened, with what is known of the reason. SQLite says little."""
    why = ""
    if _code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL):
        why = f" ({_obstacle(path)})"
    return StoreError(f"{path}: cannot be opened as a database: {error}{why}")


def _obstacle(path: Path) -> str:
    """Say what may keep the database ``path`` from being opened: a reader too makes the index of the log beside it."""
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
