"""Has files and folders on the disk before anything relies on them."""

import os
from pathlib import Path


def sync(path: Path, *, follows_links: bool = False) -> None:
    """Have a file on the disk, or the names in a folder. Raises OSError, also for a link.

    ``follows_links``: for a folder that an operator has named, which may be a link to one on another disk.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if follows_links else os.O_NOFOLLOW))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
