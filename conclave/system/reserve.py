"""Reserves disk space for cleanup: erasing needs some space on a full disk before it frees any.

The reserve is a preallocated file, which the server creates. If less than its size is free on the disk, a run truncates
the file and uses the space. The server does not refill it during a run, and accepts no large requests until the file
has its full size again.

If other programs have filled the disk, the server once releases a small part for small changes. The rest is for
cleanup.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from conclave.config.settings import Config
from conclave.logs.setup import get_logger
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError, file_size, free_bytes
from conclave.system.locks import open_to_lock

log = get_logger(__name__)

SUFFIX = ".reserve"
"""The suffix of the reserve file beside the database."""

SLACK_BYTES = 4 * 1024 * 1024
"""4 MiB for small changes, such as deletions and watermarks, on a disk that has no room for bodies."""


class Reserve:
    """The reserved space on one file system."""

    def __init__(self, path: Path, size: int) -> None:
        """Reserve ``size`` bytes in the file ``path``; 0: no reserve."""
        self.path = path
        self.size = size

    def missing(self) -> int:
        """Return how many bytes of the reserve are missing."""
        return max(0, self.size - file_size(self.path))

    def refill(self) -> None:
        """Restore the full size if there is room for it. Raises OSError; BlockingIOError while a run uses it."""
        if not self.size:
            self.path.unlink(missing_ok=True)
        elif file_size(self.path) != self.size:
            with open_to_lock(self.path, os.O_CREAT) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._fill(descriptor)

    def release_slack(self, database: Path) -> None:
        """Release SLACK_BYTES of a complete reserve for small changes, but at most half of it.

        The rest is for cleanup only. Raises OSError; BlockingIOError while a run uses it.
        """
        if not self.size or self.missing():
            return
        with open_to_lock(self.path) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = max(self.size - SLACK_BYTES, self.size // 2)
            if not self.missing():  # check again: a run may have used it in between
                _shrink(database, descriptor, size)
                log.warning("reserve_released", path=str(self.path), bytes=self.size - size)

    def _fill(self, descriptor: int) -> None:
        former_size = os.fstat(descriptor).st_size
        missing = self.size - former_size
        if missing <= 0:
            os.ftruncate(descriptor, self.size)
        elif free_bytes(self.path.parent) >= missing + SLACK_BYTES:
            try:
                os.posix_fallocate(descriptor, 0, self.size)
            except OSError:
                os.ftruncate(descriptor, former_size)  # another process took the space: a partial reserve does not help
                raise
            log.info("reserve_made", path=str(self.path), bytes=self.size)


def reserves(config: Config) -> list[Reserve]:
    """Return a server's reserves: beside the database, and in Spark's folder if that is on another file system."""
    path = config.database.with_name(config.database.name + SUFFIX)
    result = [Reserve(path, config.cleanup.disk_reserve)]
    if config.cleanup.engine == "spark" and _device(config.data) != _device(config.database.parent):
        result.append(Reserve(config.data / SUFFIX.removeprefix("."), config.cleanup.disk_reserve))
    return result


@contextmanager
def released_reserve(config: Config) -> Iterator[None]:
    """Make room for a run for the duration of the block: empty each reserve whose disk has less free than its size."""
    with ExitStack() as locks:
        for each in reserves(config):
            with suppress(OSError):  # missing, or cannot be locked: then the run uses the free space
                descriptor = locks.enter_context(open_to_lock(each.path))
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                size = os.fstat(descriptor).st_size
                if free_bytes(each.path.parent) < size:
                    _shrink(config.database, descriptor, 0)
                    log.warning("reserve_released", path=str(each.path), bytes=size)
        yield


def release_for_start(config: Config) -> None:
    """Empty the reserves if the server could not start otherwise: cleanup will make room. Raises OSError."""
    for each in reserves(config):
        if file_size(each.path) and free_bytes(each.path.parent) < SLACK_BYTES:
            os.truncate(each.path, 0)
            log.warning("reserve_released", path=str(each.path), bytes=each.size)


def _shrink(path: Path, descriptor: int, size: int) -> None:
    """Shrink a reserve to ``size`` bytes, between two transactions of the server.

    ``path``: the database. ``descriptor``: the open reserve file. The server's next transaction sees the change, and
    does not use the freed space.
    """
    try:
        with closing(sqlite.connect(path)) as connection, sqlite.write_transaction(connection):
            os.ftruncate(descriptor, size)
    except (StoreError, sqlite3.Error):  # if no server runs, a full disk may prevent opening the database
        os.ftruncate(descriptor, size)


def _device(folder: Path) -> int:
    """Return the device of ``folder``, or of the folder in which it will be created."""
    return next(each for each in (folder, *folder.parents) if each.exists()).stat().st_dev
