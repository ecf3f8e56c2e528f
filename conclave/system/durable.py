"""Flushes files and folders to the disk."""

import os
from pathlib import Path


def sync(path: Path, *, follows_links: bool = False) -> None:
    """Flush a file, or the entries of a folder, to the disk. Raises OSError. Links are not followed.

    ``follows_links``: allow links, for folders that an operator configures.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if follows_links else os.O_NOFOLLOW))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
