"""Copies, shares and syncs files. Writes in small portions, so that a running server is not delayed."""

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from conclave.system.durable import sync

KEPT_FREE_BYTES = 64 * 1024 * 1024
"""The least free space that a backup or a restore leaves, since both may write to the server's disk."""

CHUNK_BYTES = 1024 * 1024
"""The size of a read or write."""

FLUSHED_BYTES = 4 * 1024 * 1024
"""Copies are flushed after each 4 MiB, so that commits of a server do not wait for larger writes."""

PART = ".part"
"""The suffix of a file whose copy is not complete."""

_FICLONE = 0x40049409
"""The ioctl that copies a file by sharing its blocks (btrfs, XFS)."""

_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)
"""Errors of a hard link that is not possible. The file is copied instead."""


def share(source: Path, target: Path) -> bool:
    """Copy ``source`` to ``target`` atomically, by shared blocks or a hard link if possible. Return whether it was.

    Replaces an existing file. ``source`` must be immutable. Raises OSError; FileNotFoundError if ``source`` is missing.
    """
    if _share_blocks(source, target):
        return True
    _create_atomically(target, source, copy)
    return False


def can_share(source: Path, folder: Path) -> bool:
    """Return whether ``share`` would take no space in a folder. Raises the errors of ``share``.

    Tests it, since two folders of one file system may be separate mounts, as in sandboxed systemd units.
    """
    probe = folder / "probe"
    probe.unlink(missing_ok=True)
    try:
        return _share_blocks(source, probe)
    finally:
        probe.unlink(missing_ok=True)


def _share_blocks(source: Path, target: Path) -> bool:
    return _create_atomically(target, source, _clone) or link(source, target)


def link(source: Path, target: Path) -> bool:
    """Create the hard link ``target`` atomically; return whether that is possible. Raises the errors of ``share``."""
    return _create_atomically(target, source, _link)


def duplicate(source: Path, target: Path) -> None:
    """Copy ``source`` to the separate file ``target`` atomically; they may share blocks. Raises OSError."""
    if not _create_atomically(target, source, _clone):
        _create_atomically(target, source, copy)


def _create_atomically(target: Path, source: Path, make: Callable[[Path, Path], bool]) -> bool:
    """Create ``target`` by ``make`` under a temporary name, and rename it; return the result of ``make``."""
    make_folders(target.parent)
    part = target.with_name(target.name + PART)
    part.unlink(missing_ok=True)
    if is_created := make(source, part):
        part.rename(target)
    return is_created


def make_folders(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700, regardless of the umask."""
    for each in (*reversed(folder.parents), folder):
        if not each.is_dir():
            each.mkdir(mode=0o700)


def _clone(source: Path, target: Path) -> bool:
    with source.open("rb") as file, _new_file(target) as descriptor:
        try:
            fcntl.ioctl(descriptor, _FICLONE, file.fileno())
            os.fdatasync(descriptor)
        except OSError:  # not supported, or another file system
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
    """Copy a file to the new file ``target``, and sync it. Returns True. Raises OSError."""
    with source.open("rb") as file, _new_file(target) as descriptor:
        unflushed = 0
        while data := file.read(CHUNK_BYTES):
            _write(descriptor, data)
            unflushed += len(data)
            if unflushed >= FLUSHED_BYTES:
                os.fdatasync(descriptor)
                unflushed = 0
        os.fdatasync(descriptor)
    return True


def write(path: Path, text: str) -> None:
    """Write a new text file, which may have paths that are not UTF-8, and sync it. Raises OSError."""
    with _new_file(path) as descriptor:
        _write(descriptor, text.encode(errors="surrogateescape"))
        os.fsync(descriptor)


@contextmanager
def _new_file(path: Path) -> Iterator[int]:
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
    """Return the SHA-256 of a file in hexadecimal digits. Raises OSError. Links are not followed."""
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while data := file.read(CHUNK_BYTES):
            digest.update(data)
    return digest.hexdigest()


def drop_cache(path: Path) -> None:
    """Drop a file from the page cache, so that the next read comes from the disk, if supported. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Sync ``folder`` and everything in it. Raises OSError."""
    for parent, _, names in os.walk(folder):
        for name in names:
            sync(Path(parent, name))
        sync(Path(parent))


def names_under(folder: Path) -> Iterator[str]:
    """Yield the relative paths of all files and symbolic links under ``folder``, in order."""
    for parent, folders, names in os.walk(folder):
        folders.sort()
        linked = [each for each in folders if Path(parent, each).is_symlink()]
        for name in sorted([*names, *linked]):
            yield Path(parent, name).relative_to(folder).as_posix()


def remove_empty_folders(folder: Path) -> None:
    """Remove all empty folders under ``folder``."""
    for parent, folders, _ in os.walk(folder, topdown=False):
        for each in folders:
            with suppress(OSError):
                Path(parent, each).rmdir()
