"""Reserves disk space, since erasing on a full disk needs space before it frees any.

A file of zeros occupies the space. It is truncated when erasing fails for lack of space. Until it is refilled, no
messages are stored.
"""

import os
from contextlib import suppress
from pathlib import Path

SUFFIX = ".reserve"
"""Suffix of the reserve file, next to the history."""

MAX_BYTES = 4 * 1024 * 1024
"""Size of the reserve, enough for the longest message and a whole segment."""

MIN_BYTES = 256 * 1024
"""Minimum size, for small disks, where a quarter of the free space is reserved."""

_BLOCK_BYTES = 512


class SpaceReserve:
    """The reserved space of one history."""

    def __init__(self, history: Path | None) -> None:
        """``history``: the path of the history; None: in memory, without a reserve."""
        self._path = history.with_name(history.name + SUFFIX) if history else None

    def refill(self) -> bool:
        """Refill the reserve if twice its size is free. Return whether it is full."""
        if self._path is None:
            return True
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            return self._fill(descriptor)
        except OSError:
            self._empty(descriptor)  # a partial reserve does not help
            return False
        finally:
            os.close(descriptor)

    def release(self) -> bool:
        """Free the reserved space. Return whether any was reserved."""
        with suppress(OSError):
            descriptor = os.open(self._path or "", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                return self._empty(descriptor)
            finally:
                os.close(descriptor)
        return False

    def _fill(self, descriptor: int) -> bool:
        status = os.fstat(descriptor)
        if status.st_size and status.st_blocks * _BLOCK_BYTES >= status.st_size:
            return True
        disk = os.fstatvfs(descriptor)
        free = disk.f_bavail * disk.f_frsize
        size = status.st_size or min(MAX_BYTES, free // 4)
        if size < MIN_BYTES or free < 2 * size:
            return False
        os.posix_fallocate(descriptor, 0, size)
        return True

    def _empty(self, descriptor: int) -> bool:
        """Free the file's blocks, but keep its size, which ``_fill`` uses."""
        status = os.fstat(descriptor)
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, status.st_size)
        return status.st_blocks > 0
