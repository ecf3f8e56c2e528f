"""Keeps disk space free for erasing: on a full disk that takes some, before it gives any back.

A file that holds nothing stands for the space. It is emptied when something cannot be erased for lack of space. Until
it is complete again nothing is taken in.
"""

import os
from contextlib import suppress
from pathlib import Path

SUFFIX = ".reserve"
"""The suffix of the file beside the history."""

MOST_BYTES = 4 * 1024 * 1024
"""4 MiB are kept: the longest message and a whole segment of texts fit into that."""

LEAST_BYTES = 256 * 1024
"""On a small disk a quarter of what is free is kept, but no less than 256 KiB."""

_BLOCK = 512


class SpaceReserve:
    """The space that is kept for one history."""

    def __init__(self, history: Path | None) -> None:
        """``history``: its path; None: it is in memory, and needs no space."""
        self._path = history.with_name(history.name + SUFFIX) if history else None

    def refill(self) -> bool:
        """Complete the reserve if there is room for it and as much again. Return whether it is complete."""
        if self._path is None:
            return True
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            return self._fill(descriptor)
        except OSError:
            self._empty(descriptor)  # a part of a reserve would not help
            return False
        finally:
            os.close(descriptor)

    def release(self) -> bool:
        """Give the space up. Return whether there was some."""
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
        size = known.st_size or min(MOST_BYTES, free // 4)
        if size < LEAST_BYTES or free < 2 * size:
            return False
        os.posix_fallocate(descriptor, 0, size)
        return True

    def _empty(self, descriptor: int) -> bool:
        """Empty the file. Its size stays: it says how much is kept once there is room."""
        known = os.fstat(descriptor)
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, known.st_size)
        return known.st_blocks > 0
