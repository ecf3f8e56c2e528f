"""Writes files in the place of others: a former one is overwritten before it is removed, whenever a process dies."""

import os
from pathlib import Path

from conclave.failpoints import reach
from conclave.system.durable import sync
from conclave.system.locks import open_to_lock

LOCK, COPYING, NEW, FORMER = "-lock", "-copying", "-new", "-former"
"""The suffixes of what may lie beside the file. Only the first two, which are locks, lie there while it is not changed.

The second is held while a copy is written, for which those who change the file do not wait.
"""

LOCKS = (LOCK, COPYING)

PIECE_BYTES = 1024 * 1024
"""Files are copied and overwritten in pieces of 1 MiB."""

READS = 10
"""A file is read 10 times at most: again where it was replaced meanwhile."""


def take_its_place(path: Path) -> None:
    """Put the file that was written beside ``path`` in its place, and overwrite and remove the former one."""
    new, former = beside(path, NEW), beside(path, FORMER)
    if path.exists():
        try:
            os.link(path, former)
        except OSError:  # a file system without links
            path.rename(former)
    reach("keys.linked")
    new.replace(path)
    sync(path.parent, follows_links=True)
    reach("keys.replaced")
    discard(former)


def remove_leftovers(path: Path) -> None:
    """Remove what a process has left that died while it wrote the file ``path`` anew."""
    former = beside(path, FORMER)
    if former.exists() and not path.exists():  # a file system without links
        former.rename(path)
    for left_over in (beside(path, NEW), former):
        if left_over.exists() and path.exists() and left_over.samefile(path):  # a second name of the file itself
            left_over.unlink()
        else:
            discard(left_over)


def read_current(path: Path, size: int = -1) -> bytes:
    """Return the first ``size`` bytes of the file that is there, or all. Raises OSError.

    One that another process replaces is overwritten, so that what was read of it may be zeros: then the new one is
    read. What is changed within the file meanwhile may be read in part: that is kept from by the file's lock.
    """
    data = b""
    for _ in range(READS):
        with path.open("rb") as file:
            data = file.read(size)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                break
    return data


def discard(path: Path) -> None:
    """Overwrite a file and remove it, durably. Nothing is done if there is none."""
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
    """Write all of ``data`` at ``offset``, and return where it ends. Raises OSError."""
    rest = memoryview(data)
    while rest:
        count = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[count:], offset + count
    return offset


def beside(path: Path, suffix: str) -> Path:
    """Return the path of what may lie beside the file ``path``."""
    return path.with_name(path.name + suffix)
