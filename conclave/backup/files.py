"""Copies and shares files, a little at a time, and has them on the disk before anything relies on them."""

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from conclave.system.durable import sync

KEPT_FREE_BYTES = 64 * 1024 * 1024
"""A backup or a restore leaves at least 64 MiB free where it writes: it may be the disk of the server."""

CHUNK_BYTES = 1024 * 1024
"""Files are read and written 1 MiB at a time."""

FLUSHED_BYTES = 4 * 1024 * 1024
"""What is written goes to the disk after each 4 MiB, so that the commits of a server never wait for more than that."""

PART = ".part"
"""The suffix of a file that is being copied. Without it, a file is whole."""

_FICLONE = 0x40049409
"""The number of the ioctl that shares the blocks of a file; the copy is a file of its own (btrfs, XFS)."""

_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)
"""Errors that mean: this file cannot have another name there. Then it is copied."""


def share(source: Path, target: Path) -> bool:
    """Make ``target`` the same as ``source``, and tell whether that took no space: by shared blocks or by a link.

    It takes the place of a file that is there. ``source`` must never be changed in place. A crash leaves ``target`` as
    it was, or whole. Raises OSError; FileNotFoundError if there is no source.
    """
    if _shared(source, target):
        return True
    _whole(target, source, copy)
    return False


def can_share(source: Path, folder: Path) -> bool:
    """Return whether ``share`` would take no space in a folder. Raises OSError as that does.

    It is tried: two folders of one file system may be mounted apart, as in the confinement of systemd's units.
    """
    probe = folder / "probe"
    probe.unlink(missing_ok=True)
    try:
        return _shared(source, probe)
    finally:
        probe.unlink(missing_ok=True)


def _shared(source: Path, target: Path) -> bool:
    return _whole(target, source, _clone) or link(source, target)


def link(source: Path, target: Path) -> bool:
    """Give ``source`` the name ``target`` too; tell whether that can be. Raises OSError as ``share`` does."""
    return _whole(target, source, _link)


def duplicate(source: Path, target: Path) -> None:
    """Make ``target`` a file of its own with the content of ``source``; blocks may be shared. Raises OSError."""
    if not _whole(target, source, _clone):
        _whole(target, source, copy)


def _whole(target: Path, source: Path, make: Callable[[Path, Path], bool]) -> bool:
    """Let ``make`` make a file, which gets its name only once it is whole; tell whether it did."""
    make_folders(target.parent)
    part = target.with_name(target.name + PART)
    part.unlink(missing_ok=True)
    if made := make(source, part):
        part.rename(target)
    return made


def make_folders(folder: Path) -> None:
    """Make a folder, with those above it that are missing: for the operator alone, under any umask."""
    for each in (*reversed(folder.parents), folder):
        if not each.is_dir():
            each.mkdir(mode=0o700)


def _clone(source: Path, target: Path) -> bool:
    with source.open("rb") as read, _created(target) as written:
        try:
            fcntl.ioctl(written, _FICLONE, read.fileno())
            os.fdatasync(written)
        except OSError:  # most file systems cannot, or these are two
            target.unlink()
            return False
    return True


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    return True


def copy(source: Path, target: Path) -> bool:
    """Copy a file; ``target`` must not exist. All of it is on the disk then. Raises OSError; returns True."""
    with source.open("rb") as read, _created(target) as written:
        unflushed = 0
        while data := read.read(CHUNK_BYTES):
            _write(written, data)
            unflushed += len(data)
            if unflushed >= FLUSHED_BYTES:
                os.fdatasync(written)
                unflushed = 0
        os.fdatasync(written)
    return True


def write(path: Path, text: str) -> None:
    """Write a new file of text, and have it on the disk. Raises OSError."""
    with _created(path) as written:
        _write(written, text.encode())
        os.fsync(written)


@contextmanager
def _created(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sum_of(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal digits. Raises OSError, also for a symbolic link."""
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while data := file.read(CHUNK_BYTES):
            digest.update(data)
    return digest.hexdigest()


def forget(path: Path) -> None:
    """Have the next read of a file come from the disk, where the system can do that. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Have everything under ``folder`` on the disk, and ``folder`` itself. Raises OSError."""
    for parent, _, names in os.walk(folder):
        for name in names:
            sync(Path(parent, name))
        sync(Path(parent))


def names_under(folder: Path) -> Iterator[str]:
    """Yield the paths within ``folder`` of all that is there and is no folder, in order; links are not followed."""
    for parent, folders, names in os.walk(folder):
        folders.sort()
        linked = [each for each in folders if Path(parent, each).is_symlink()]
        for name in sorted([*names, *linked]):
            yield Path(parent, name).relative_to(folder).as_posix()


def remove_empty_folders(folder: Path) -> None:
    """Remove the folders under ``folder`` in which nothing is left."""
    for parent, folders, _ in os.walk(folder, topdown=False):
        for each in folders:
            with suppress(OSError):
                Path(parent, each).rmdir()
