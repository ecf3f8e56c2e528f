"""Locks between processes. The system lets them go however a process ends.

A lock is held as long as a block lasts. A database has two locks. One is for its name, in a file beside it. The other
is for the file that it is, since a database may have several names (hard links, a folder that is mounted twice). The
second is a lock on the file itself, far behind the bytes that SQLite locks there. It belongs to the open file, not to
the process as SQLite's locks do.

But a process that closes the database's file in any way loses SQLite's locks on it. So take a lock on a database before
the block opens the database, and let it go after the block has closed it.
"""

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

Wait = Callable[[], None]
"""Called before a wait for another process's lock."""


class LockedError(Exception):
    """Another process holds the lock."""


@dataclass(frozen=True)
class LockRole:
    """What a lock on a database is for."""

    suffix: str
    """Of the name of the file beside the database."""
    byte: int
    """The byte of the database itself that is locked."""


SERVER = LockRole(".server-lock", 2**62)
CLEANUP = LockRole(".cleanup-lock", 2**62 + 1)

_LOCK = "hhqqi0q"
"""struct flock: type, whence, first byte, length, process."""

_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_NO_LOCKS = "its file system has no locks, as some on the network; it must lie on a local disk"


class LockFileReplacedError(OSError):
    """The file of a lock was replaced after it was opened. A newcomer would not find it locked."""


class DatabaseLock:
    """Both locks on a database. Their files are opened once, and locked for a block at a time.

    Another process that has ``descriptors`` too holds the same locks, as long as it lives.
    """

    def __init__(self, database: Path, role: LockRole) -> None:
        """Open the files; the database has to be there. Raises OSError."""
        self._database, self._name, self._role = database, _beside(database, role), role
        with ExitStack() as opened:
            self._by_name = opened.enter_context(open_to_lock(self._name, os.O_CREAT))
            self._by_inode = opened.enter_context(open_to_lock(database))
            self._files = opened.pop_all()

    @property
    def descriptors(self) -> tuple[int, int]:
        """The open files."""
        return self._by_name, self._by_inode

    @contextmanager
    def hold(self, wait: Wait | None = None) -> Iterator[None]:
        """Hold both locks while the block lasts.

        ``wait``: called at most once, before a wait for another process's lock. Without it LockedError is raised
        instead. Raises ReplacedError, and OSError where there can be no lock.
        """
        waiting = _once(wait) if wait else None
        with (
            _flocked(self._name, self._by_name, waiting),
            _locked_within(self._database, self._by_inode, self._role.byte, waiting),
        ):
            for path, descriptor in ((self._name, self._by_name), (self._database, self._by_inode)):
                _require_in_place(path, descriptor)
            yield

    def close(self) -> None:
        """Close the files. Close the store first: the process loses SQLite's locks on the database by this."""
        self._files.close()


@contextmanager
def hold(database: Path, role: LockRole, wait: Wait | None = None) -> Iterator[None]:
    """Hold both locks on a database that exists. Raises as ``DatabaseLock`` does."""
    with closing(DatabaseLock(database, role)) as lock, lock.hold(wait):
        yield


@contextmanager
def hold_file(path: Path, wait: Wait | None = None) -> Iterator[None]:
    """Lock the file ``path``, and make it if it is missing.

    ``wait``: as of ``DatabaseLock.hold``. Raises LockedError; OSError if there can be no lock.
    """
    with open_to_lock(path, os.O_CREAT) as descriptor, _flocked(path, descriptor, wait):
        yield


@contextmanager
def hold_name(database: Path, role: LockRole) -> Iterator[None]:
    """Lock the file beside ``database`` that stands for its name. Raises as ``hold_file`` does."""
    with hold_file(_beside(database, role)):
        yield


@contextmanager
def hold_inode(database: Path, role: LockRole) -> Iterator[None]:
    """Lock the database's own file, which may have other names. Raises as ``hold_file`` does."""
    with open_to_lock(database) as descriptor, _locked_within(database, descriptor, role.byte):
        yield


@contextmanager
def hold_byte(path: Path, byte: int, wait: Wait | None = None) -> Iterator[None]:
    """Lock one byte of the file ``path``, which need not be so long. It is made if it is missing.

    ``wait``, and what is raised: as of ``hold_file``.
    """
    with open_to_lock(path, os.O_CREAT) as descriptor, _locked_within(path, descriptor, byte, wait):
        yield


def _beside(database: Path, role: LockRole) -> Path:
    return database.with_name(database.name + role.suffix)


def _once(wait: Wait) -> Wait:
    told = False

    def tell() -> None:
        nonlocal told
        if not told:
            told = True
            wait()

    return tell


def _require_in_place(path: Path, descriptor: int) -> None:
    try:
        is_in_place = os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        is_in_place = False
    if not is_in_place:
        raise LockFileReplacedError(
            errno.ESTALE, "was removed or replaced while this process had it open: restart it", str(path)
        )


@contextmanager
def _flocked(path: Path, descriptor: int, wait: Wait | None = None) -> Iterator[None]:
    _take(
        path,
        partial(fcntl.flock, descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB),
        partial(fcntl.flock, descriptor, fcntl.LOCK_EX),
        wait,
    )
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def _locked_within(path: Path, descriptor: int, byte: int, wait: Wait | None = None) -> Iterator[None]:
    """Lock a byte, for the open file and not for the process."""
    wanted = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    _take(
        path,
        partial(fcntl.fcntl, descriptor, fcntl.F_OFD_SETLK, wanted),
        partial(fcntl.fcntl, descriptor, fcntl.F_OFD_SETLKW, wanted),
        wait,
    )
    try:
        yield
    finally:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_LOCK, fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0))


@contextmanager
def open_to_lock(path: Path, flags: int = 0) -> Iterator[int]:
    """Open a file to lock and to change it, while the block lasts. Raises OSError, as for a symbolic link.

    ``flags``: more flags of ``os.open``. A new file can be read and written by its owner only: that of its folder, if
    root makes it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    try:
        if flags & os.O_CREAT and os.geteuid() == 0:
            _give(descriptor, path.parent)
        yield descriptor
    finally:
        os.close(descriptor)


def _give(descriptor: int, folder: Path) -> None:
    """Give a file of root's to the owner of its folder, as SQLite does: the server's user has to open it later."""
    owner = folder.stat()
    if owner.st_uid and os.fstat(descriptor).st_uid == 0:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _take(path: Path, at_once: Callable[[], object], later: Callable[[], object], wait: Wait | None) -> None:
    """Take a lock ``at_once``. If another process holds it, call ``wait`` and take it ``later``.

    Raises LockedError if there is no ``wait``; OSError.
    """
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
