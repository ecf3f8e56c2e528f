"""Tells which processes hold locks on files, by the kernel's list. No other file is opened.

Closing a database's file would end the locks that SQLite has on it in this process.
"""

from pathlib import Path
from typing import NamedTuple

from conclave.logs.humanize import visible

_LOCKS = Path("/proc/locks")
_FIELDS = 8

_WRITE_LOCK = 120
"""The byte of the file ``-shm`` that SQLite locks for the process that writes to a database with a write-ahead log."""


class Held(NamedTuple):
    """A lock that is held."""

    inode: str
    kind: str
    is_to_write: bool
    pid: int
    """0 or -1 where the kernel does not tell."""
    first: int
    """The byte at which it begins."""


def held() -> list[Held] | None:
    """Return all locks that are held; None if that cannot be told, as elsewhere than on Linux."""
    try:
        listed = _LOCKS.read_text(encoding="ascii")
    except OSError:
        return None
    return [
        Held(fields[5].rpartition(":")[2], fields[1], fields[3] == "WRITE", int(fields[4]), int(fields[6]))
        for fields in map(str.split, listed.splitlines())
        if len(fields) == _FIELDS  # who waits for a lock has an arrow more
    ]


def of_file(locks: list[Held], path: Path) -> list[Held]:
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
