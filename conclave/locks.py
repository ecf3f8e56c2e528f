"""Locks between processes, held as long as a block lasts, and let go by the system however the process ends.

A database is locked by its name, in a file beside it, and by what it is: it may have several names (hard links, a
folder that is mounted twice). The second is a lock on the file itself, far behind the bytes that SQLite locks there.
It belongs to the open file, not to the process as SQLite's do.

But closing the database's file in any way makes the process lose SQLite's locks on it. So a lock on a database has to
be taken before the block opens it, and to be let go after the block has closed it.
"""

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

Wait = Callable[[], None]
"""Called before somebody else is waited for."""


class LockedError(Exception):
    """Somebody else holds the lock."""


@dataclass(frozen=True)
class Role:
    """What a lock on a database is for: ``suffix`` of the file beside it, ``byte`` of the database itself."""

    suffix: str
    byte: int


SERVER = Role(".server-lock", 2**62)
CLEANUP = Role(".cleanup-lock", 2**62 + 1)

_LOCK = "hhqqi0q"
"""struct flock: type, whence, first byte, length, process."""

_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_NO_LOCKS = "its file system has no locks, as some on the network; it must lie on a local disk"


@contextmanager
def hold(database: Path, role: Role, wait: Wait | None = None) -> Iterator[tuple[int, ...]]:
    """Hold a database, which is there, in both ways; yield the descriptors that hold it. Raises as ``hold_file``.

    ``wait`` is called, once at most, before somebody else is waited for.
    """
    told = False

    def tell() -> None:
        nonlocal told
        if wait and not told:
            told = True
            wait()

    with ExitStack() as held:
        waiting = tell if wait else None
        yield (
            held.enter_context(hold_name(database, role, waiting)),
            held.enter_context(hold_inode(database, role, waiting)),
        )


@contextmanager
def hold_file(path: Path, wait: Wait | None = None) -> Iterator[int]:
    """Hold the file ``path``, which is made if it is not there; yield its descriptor.

    ``wait`` is called before somebody else is waited for; without it, that raises LockedError. Raises OSError where
    there can be no lock.
    """
    with _opened(path, os.O_CREAT) as descriptor:
        _take(
            path,
            partial(fcntl.flock, descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB),
            partial(fcntl.flock, descriptor, fcntl.LOCK_EX),
            wait,
        )
        yield descriptor


@contextmanager
def hold_name(database: Path, role: Role, wait: Wait | None = None) -> Iterator[int]:
    """Hold the file beside ``database`` that stands for its name. As ``hold_file``."""
    with hold_file(database.with_name(database.name + role.suffix), wait) as descriptor:
        yield descriptor


@contextmanager
def hold_inode(database: Path, role: Role, wait: Wait | None = None) -> Iterator[int]:
    """Hold the file that ``database`` is, by whatever name others know it. As ``hold_file``."""
    wanted = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, role.byte, 1, 0)
    with _opened(database) as descriptor:
        _take(
            database,
            partial(fcntl.fcntl, descriptor, fcntl.F_OFD_SETLK, wanted),
            partial(fcntl.fcntl, descriptor, fcntl.F_OFD_SETLKW, wanted),
            wait,
        )
        yield descriptor


@contextmanager
def _opened(path: Path, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _take(path: Path, at_once: Callable[[], object], later: Callable[[], object], wait: Wait | None) -> None:
    """Take a lock ``at_once``, or else ``later``, if that is to be waited for."""
    try:
        try:
            at_once()
        except BlockingIOError as error:
            if wait is None:
                raise LockedError(str(path)) from error
            wait()
            later()
    except OSError as error:
        text = _NO_LOCKS if error.errno in _UNSUPPORTED else error.strerror
        raise OSError(error.errno, text, str(path)) from error
