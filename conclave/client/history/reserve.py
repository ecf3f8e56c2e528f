"""Reserves disk space for erasing, which on a full disk needs some before it frees any.

A file of zeros occupies the space. It is truncated when erasing fails for lack of space. Until it is refilled, no
messages are stored.
"""

import os
from contextlib import suppress
from pathlib import Path

SUFFIX = ".reserve"
"""Suffix of the reserve file, next to the history."""

MAX_BYTES = 4 * 1024 * 1024
"""Size of the reserve: the longest message and a whole segment fit into it."""

MIN_BYTES = 256 * 1024
"""Minimum size: on a small disk a quarter of the free space is reserved."""

_BLOCK = 512


class SpaceReserve:
    """The reserved space of one history."""

    def __init__(self, history: Path | None) -> None:
        """``history``: its path; None: in memory, without a reserve."""
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
        """Free the space. Return whether there was any."""
        with suppress(OSError):
            descriptor = os.open(self._path or "", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                return self._empty(descriptor)
            finally:
                os.close(descriptor)
        return False

    def _fill(self, descriptor: int) -> bool:
        known = os.fstat(descriptor)
        if known.st_size and known.st_blocks * _BLOCK >= known.st_size:
            return True
        disk = os.fstatvfs(descriptor)
        free = disk.f_bavail * disk.f_frsize
        size = known.st_size or min(MAX_BYTES, free // 4)
        if size < MIN_BYTES or free < 2 * size:
            return False
        os.posix_fallocate(descriptor, 0, size)
        return True

    def _empty(self, descriptor: int) -> bool:
        """Free the file's blocks. Its size stays, as the size to refill."""
        known = os.fstat(descriptor)
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, known.st_size)
        return known.st_blocks > 0
