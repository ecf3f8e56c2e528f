"""Replaces files. The old file is overwritten before it is removed, even if a process is killed in between."""

import os
from pathlib import Path

from conclave.failpoints import reach
from conclave.system.durable import sync
from conclave.system.locks import open_to_lock

LOCK, COPYING, NEW, FORMER = "-lock", "-copying", "-new", "-former"
"""The suffixes of files beside the key file. Only the first two, which are locks, exist between changes.

The second lock is held while a copy is written. Changes of the key file do not wait for it.
"""

LOCKS = (LOCK, COPYING)

PIECE_BYTES = 1024 * 1024
"""Files are copied and overwritten in pieces of 1 MiB."""

MAX_READS = 10
"""A file that is replaced while it is read is read again, at most 10 times in all."""


def replace_current(path: Path) -> None:
    """Replace ``path`` with the new file beside it, and overwrite and remove the old one."""
    new, former = sibling(path, NEW), sibling(path, FORMER)
    if path.exists():
        try:
            os.link(path, former)
        except OSError:  # a file system without hard links
            path.rename(former)
    reach("keys.linked")
    new.replace(path)
    sync(path.parent, follows_links=True)
    reach("keys.replaced")
    discard(former)


def remove_leftovers(path: Path) -> None:
    """Remove the leftovers of an interrupted rewrite of the file ``path``."""
    former = sibling(path, FORMER)
    if former.exists() and not path.exists():  # a file system without hard links
        former.rename(path)
    for left_over in (sibling(path, NEW), former):
        if left_over.exists() and path.exists() and left_over.samefile(path):  # a second name of the file itself
            left_over.unlink()
        else:
            discard(left_over)


def read_current(path: Path, size: int = -1) -> bytes:
    """Return the first ``size`` bytes of the file, or all. Raises OSError.

    If another process replaces the file, the old one is overwritten, and zeros may be read: then the new file is read.
    Changes within the file may be read in part, unless the caller holds the file's lock.
    """
    data = b""
    for _ in range(MAX_READS):
        with path.open("rb") as file:
            data = file.read(size)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                break
    return data


def discard(path: Path) -> None:
    """Overwrite a file and remove it, durably. Does nothing if it is missing."""
    try:
        with open_to_lock(path) as descriptor:
            size = os.fstat(descriptor).st_size
            for begin in range(0, size, PIECE_BYTES):
                write_all(descriptor, bytes(min(PIECE_BYTES, size - begin)), begin)
            os.fsync(descriptor)
    except FileNotFoundError:
        return
    reach("keys.former_overwritten")
    path.unlink()
    sync(path.parent, follows_links=True)
    reach("keys.former_removed")


def write_all(descriptor: int, data: bytes, offset: int) -> int:
    """Write all of ``data`` at ``offset``, and return the end offset. Raises OSError."""
    rest = memoryview(data)
    while rest:
        count = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[count:], offset + count
    return offset


def sibling(path: Path, suffix: str) -> Path:
    """Return ``path`` with ``suffix`` appended to its name."""
    return path.with_name(path.name + suffix)
