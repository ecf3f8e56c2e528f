"""Locks between processes. The system releases them when a process ends, even if it is killed.

A lock is held for the duration of a block. A database has two locks. One is a file beside it, for the database's name.
The other is on the database file itself, since one file may have several names (hard links, bind mounts): a byte far
beyond those that SQLite locks. This lock belongs to the open file; SQLite's locks belong to the process.

A process that closes any descriptor of the database file loses SQLite's locks on it. So lock a database before it is
opened, and release the lock after it is closed.
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
"""Called before waiting for a lock that another process holds."""


class LockedError(Exception):
    """Another process holds the lock."""


@dataclass(frozen=True)
class LockRole:
    """The purpose of a lock on a database."""

    suffix: str
    """The suffix of the lock file beside the database."""
    byte: int
    """The byte of the database file that is locked."""


SERVER = LockRole(".server-lock", 2**62)
CLEANUP = LockRole(".cleanup-lock", 2**62 + 1)

_LOCK = "hhqqi0q"
"""struct flock: type, whence, first byte, length, process."""

_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_NO_LOCKS = "its file system does not support locks, as some network file systems; use a local disk"


class LockFileReplacedError(OSError):
    """A locked file was replaced after it was opened, so other processes would not see the lock."""


class DatabaseLock:
    """Both locks on a database. The files are opened once, and locked for the duration of a block.

    A process that inherits ``descriptors`` holds the same locks until it ends.
    """

    def __init__(self, database: Path, role: LockRole) -> None:
        """Open the files. The database must exist. Raises OSError."""
        self._database, self._name, self._role = database, _lock_path(database, role), role
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
        """Hold both locks for the duration of the block.

        ``wait``: called at most once, before waiting for another process. If it is None, LockedError is raised instead.
        Raises LockFileReplacedError, and OSError if the file cannot be locked.
        """
        wait_once = _once(wait) if wait else None
        with (
            _flocked(self._name, self._by_name, wait_once),
            _locked_within(self._database, self._by_inode, self._role.byte, wait_once),
        ):
            for path, descriptor in ((self._name, self._by_name), (self._database, self._by_inode)):
                _require_in_place(path, descriptor)
            yield

    def close(self) -> None:
        """Close the files. Close the store first: this process loses SQLite's locks on the database."""
        self._files.close()


@contextmanager
def hold(database: Path, role: LockRole, wait: Wait | None = None) -> Iterator[None]:
    """Hold both locks on an existing database. Raises the errors of ``DatabaseLock``."""
    with closing(DatabaseLock(database, role)) as lock, lock.hold(wait):
        yield


@contextmanager
def hold_file(path: Path, wait: Wait | None = None) -> Iterator[None]:
    """Lock the file ``path``, creating it if it is missing.

    ``wait``: see ``DatabaseLock.hold``. Raises LockedError, and OSError if the file cannot be locked.
    """
    with open_to_lock(path, os.O_CREAT) as descriptor, _flocked(path, descriptor, wait):
        yield


@contextmanager
def hold_name(database: Path, role: LockRole) -> Iterator[None]:
    """Lock the lock file beside ``database``. Raises the errors of ``hold_file``."""
    with hold_file(_lock_path(database, role)):
        yield


@contextmanager
def hold_inode(database: Path, role: LockRole) -> Iterator[None]:
    """Lock the database file itself, which may have other names. Raises the errors of ``hold_file``."""
    with open_to_lock(database) as descriptor, _locked_within(database, descriptor, role.byte):
        yield


@contextmanager
def hold_byte(path: Path, byte: int, wait: Wait | None = None) -> Iterator[None]:
    """Lock one byte of the file ``path``, which may be shorter. Create the file if it is missing.

    ``wait`` and errors: see ``hold_file``.
    """
    with open_to_lock(path, os.O_CREAT) as descriptor, _locked_within(path, descriptor, byte, wait):
        yield


def _lock_path(database: Path, role: LockRole) -> Path:
    return database.with_name(database.name + role.suffix)


def _once(wait: Wait) -> Wait:
    was_called = False

    def call() -> None:
        nonlocal was_called
        if not was_called:
            was_called = True
            wait()

    return call


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
    _acquire(
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
    """Lock a byte for the open file description, not for the process."""
    lock_request = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    _acquire(
        path,
        partial(fcntl.fcntl, descriptor, fcntl.F_OFD_SETLK, lock_request),
        partial(fcntl.fcntl, descriptor, fcntl.F_OFD_SETLKW, lock_request),
        wait,
    )
    try:
        yield
    finally:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_LOCK, fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0))


@contextmanager
def open_to_lock(path: Path, flags: int = 0) -> Iterator[int]:
    """Open a file for locking and writing, for the duration of the block. Raises OSError. Links are not followed.

    ``flags``: additional flags of ``os.open``. A new file has the mode 0600; if root creates it, it gets the owner of
    its folder.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    try:
        if flags & os.O_CREAT and os.geteuid() == 0:
            _chown_as_folder(descriptor, path.parent)
        yield descriptor
    finally:
        os.close(descriptor)


def _chown_as_folder(descriptor: int, folder: Path) -> None:
    """Give a file that root owns to the owner of its folder, as SQLite does, so that the server can open it later."""
    owner = folder.stat()
    if owner.st_uid and os.fstat(descriptor).st_uid == 0:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _acquire(path: Path, try_lock: Callable[[], object], lock: Callable[[], object], wait: Wait | None) -> None:
    """Acquire a lock by ``try_lock``. If another process holds it, call ``wait``, then ``lock``, which blocks.

    Raises LockedError if ``wait`` is None, and OSError.
    """
    try:
        try:
            try_lock()
        except BlockingIOError as error:
            if wait is None:
                raise LockedError(str(path)) from error
            wait()
            lock()
    except OSError as error:
        text = _NO_LOCKS if error.errno in _UNSUPPORTED else error.strerror
        raise OSError(error.errno, text, str(path)) from error
