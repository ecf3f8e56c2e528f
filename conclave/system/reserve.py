"""Keeps disk space free for cleanup: on a full disk erasing takes some, before it gives any back.

A file that holds nothing stands for the space. The server makes it. If a run finds less than that much room on the
disk, it empties the file and works in what that frees. The server does not take the space back while a run is at work.
It takes in nothing large until the file is complete again: then the disk has room for both once more.

If others have filled the disk, the server gives up a little of the space for small things, once. The rest is for
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
"""The suffix of the file beside the database."""

SLACK_BYTES = 4 * 1024 * 1024
"""4 MiB for small things, such as deletions and watermarks, on a disk that has no room for bodies."""


class Reserve:
    """The space that is kept on one file system."""

    def __init__(self, path: Path, size: int) -> None:
        """Keep ``size`` bytes in the file ``path``; 0 for none."""
        self.path = path
        self.size = size

    def missing(self) -> int:
        """Return how many bytes of the reserve are missing."""
        return max(0, self.size - file_size(self.path))

    def keep(self) -> None:
        """Complete the reserve, if there is room for it. Raises OSError; BlockingIOError if a run has it."""
        if not self.size:
            self.path.unlink(missing_ok=True)
        elif file_size(self.path) != self.size:
            with open_to_lock(self.path, os.O_CREAT) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._fill(descriptor)

    def shorten(self, database: Path) -> None:
        """Give up SLACK_BYTES of a complete reserve for small things, but at most half of it.

        What is left is for cleanup alone. Raises OSError; BlockingIOError if a run has it.
        """
        if not self.size or self.missing():
            return
        with open_to_lock(self.path) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left = max(self.size - SLACK_BYTES, self.size // 2)
            if not self.missing():  # look again: a run may have come and gone
                _cut(database, descriptor, left)
                log.warning("reserve_released", path=str(self.path), bytes=self.size - left)

    def _fill(self, descriptor: int) -> None:
        kept = os.fstat(descriptor).st_size
        missing = self.size - kept
        if missing <= 0:
            os.ftruncate(descriptor, self.size)
        elif free_bytes(self.path.parent) >= missing + SLACK_BYTES:
            try:
                os.posix_fallocate(descriptor, 0, self.size)
            except OSError:
                os.ftruncate(descriptor, kept)  # another process took the room: half a reserve does not help
                raise
            log.info("reserve_made", path=str(self.path), bytes=self.size)


def reserves(config: Config) -> list[Reserve]:
    """Return a server's reserves: beside the database, and where Spark works if that is another file system."""
    beside = config.database.with_name(config.database.name + SUFFIX)
    found = [Reserve(beside, config.cleanup.disk_reserve)]
    if config.cleanup.engine == "spark" and _device(config.data) != _device(config.database.parent):
        found.append(Reserve(config.data / SUFFIX.removeprefix("."), config.cleanup.disk_reserve))
    return found


@contextmanager
def room(config: Config) -> Iterator[None]:
    """Make room for a run while the block lasts: give a reserve up if the disk has less free than it."""
    with ExitStack() as held:
        for each in reserves(config):
            with suppress(OSError):  # there is none, or it cannot be locked: then the run takes what there is
                descriptor = held.enter_context(open_to_lock(each.path))
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                kept = os.fstat(descriptor).st_size
                if free_bytes(each.path.parent) < kept:
                    _cut(config.database, descriptor, 0)
                    log.warning("reserve_released", path=str(each.path), bytes=kept)
        yield


def give_up_to_start(config: Config) -> None:
    """Give the reserves up if a server could not start without: cleanup will make room. Raises OSError."""
    for each in reserves(config):
        if file_size(each.path) and free_bytes(each.path.parent) < SLACK_BYTES:
            os.truncate(each.path, 0)
            log.warning("reserve_released", path=str(each.path), bytes=each.size)


def _cut(path: Path, descriptor: int, left: int) -> None:
    """Leave ``left`` bytes of a reserve, between two transactions of the server.

    ``path``: the database. ``descriptor``: the open file of the reserve. The server's next transaction sees that, and
    does not take what is freed.
    """
    try:
        with closing(sqlite.connect(path)) as connection, sqlite.write_transaction(connection):
            os.ftruncate(descriptor, left)
    except (StoreError, sqlite3.Error):  # where no server runs, a full disk may keep the database from being opened
        os.ftruncate(descriptor, left)


def _device(folder: Path) -> int:
    """Return the file system that ``folder`` is on, or will be."""
    return next(each for each in (folder, *folder.parents) if each.exists()).stat().st_dev
