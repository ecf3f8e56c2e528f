"""Writes copies of a key file. A copy is a consistent snapshot, and replaces the previous copy.

Copies are on other disks. Each access has a timeout, since such a disk may hang.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from conclave.keys.file import Head, KeyFile, KeyFileError, as_key_file_errors, head_of, wait_silently, write_key_file
from conclave.keys.inspection import Inspection
from conclave.keys.replacing import COPYING, FORMER, NEW, PIECE_BYTES, remove_leftovers, replace_current, sibling
from conclave.system.disk_timeout import run_with_timeout
from conclave.system.locks import hold_byte

TIMEOUT_SECONDS = 30.0
"""The timeout for accesses to a copy's disk: 30 seconds, and one more for each MiB if the whole file is accessed."""


def copy(keys: KeyFile, target: Path) -> int:
    """Write the keys that are not erased to ``target``, and overwrite the previous copy. Return the serial.

    Raises KeyFileError. Reasons include: ``target`` is another key file, or not a key file; this file is damaged, or
    older than the copy, which may have keys that are missing here; a timeout, after which the write may still finish.
    """
    seconds = copy_timeout(keys.path)
    with as_key_file_errors(target):
        return run_with_timeout(seconds, target, partial(_copy, keys, target))


def read_head(target: Path) -> Head | None:
    """Return the head of a copy, see ``head_of``. Raises KeyFileError, for example on a timeout."""
    with as_key_file_errors(target):
        return run_with_timeout(TIMEOUT_SECONDS, target, partial(head_of, target))


def is_current(keys: "KnownChanges", target: Path) -> bool:
    """Return whether a copy has the newest change, and no temporary files of an interrupted write are beside it.

    Raises KeyFileError as ``read_head`` does.
    """

    def check() -> bool:
        has_leftovers = any(sibling(Path(os.path.realpath(target)), suffix).exists() for suffix in (NEW, FORMER))
        return head_of(target) == (keys.serial, keys.keys_id) and not has_leftovers

    with as_key_file_errors(target):
        return run_with_timeout(TIMEOUT_SECONDS, target, check)


class KnownChanges(Protocol):
    """A key file, with the serial number of its last known change."""

    @property
    def path(self) -> Path:
        """The path of the file."""

    @property
    def keys_id(self) -> bytes:
        """See ``KeyFile``."""

    @property
    def serial(self) -> int:
        """See ``KeyFile``."""


def later_serial(target: Path, keys: KnownChanges) -> int:
    """Return the serial of a copy of ``keys`` if it is newer than ``keys`` and undamaged, otherwise 0.

    Raises KeyFileError as ``read_head`` does.
    """

    def check() -> int:
        head = head_of(target)
        if head is None or head.keys_id != keys.keys_id or head.serial <= keys.serial:
            return 0
        return 0 if Inspection(target).flaws else head.serial

    seconds = copy_timeout(keys.path)
    with as_key_file_errors(target):
        return run_with_timeout(seconds, target, check)


@contextmanager
def copy_lock(path: Path, target: Path) -> Iterator[None]:
    """Exclude other processes from copying the key file ``path`` to the folder of ``target`` during the block.

    The lock is for the folder's inode, which may have other names. Other folders are not locked. Raises OSError.
    """
    folder = target.parent.stat()
    with hold_byte(sibling(path, COPYING), (folder.st_dev << 40 ^ folder.st_ino) % 2**62, wait_silently):
        yield


def copy_timeout(path: Path) -> float:
    """Return the timeout for reading or writing a whole copy of ``path``, in seconds. Raises KeyFileError."""
    with as_key_file_errors(path):
        return TIMEOUT_SECONDS + (path.stat().st_size if path.exists() else 0) / PIECE_BYTES


def _copy(keys: KeyFile, target: Path) -> int:
    path, target = keys.path, Path(os.path.realpath(target))  # keep a link, and overwrite the file behind it
    with as_key_file_errors(target), copy_lock(path, target):
        if target.exists() and target.samefile(path):
            raise KeyFileError(f"{target}: is the key file itself, not a copy")
        remove_leftovers(target)
        head, chunks = keys.contents()  # read into memory: the other disk may be slow or hang
        target_head = head_of(target)
        if target.exists() and (target_head is None or target_head.keys_id != head.keys_id):
            raise KeyFileError(f"{target}: is not a copy of these keys: move it away")
        if target_head and target_head.serial > head.serial:
            raise KeyFileError(
                f"{target}: is newer than {path}, which was replaced by an older key file: stop the server and"
                " restore the newer one, or move it away"
            )
        write_key_file(sibling(target, NEW), head, chunks, path)
        replace_current(target)
        return head.serial
