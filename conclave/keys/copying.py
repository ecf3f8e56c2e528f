"""Writes copies of a key file: each has what the file has at one moment, in the place of a former copy.

They lie on other disks. One that does not answer holds no process up for longer than a bound.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from conclave.keys.file import Head, KeyFile, KeyFileError, head_of, told, wait, write_whole
from conclave.keys.inspection import Inspection
from conclave.keys.replacing import COPYING, FORMER, NEW, PIECE_BYTES, beside, remove_leftovers, take_its_place
from conclave.system.answering import within
from conclave.system.locks import hold_byte

ANSWER_SECONDS = 30.0
"""The disk of a copy gets 30 seconds to answer, and a second more for each MiB where it is read or written whole."""


def copy(keys: KeyFile, target: Path) -> int:
    """Write what lives to ``target``, in the place of a former copy, which is overwritten. Return its serial.

    Raises KeyFileError, also if another key file, or something else, is there; if this one is damaged, or older than
    the copy, which may have what is missing here; and if the disk does not answer. Then the copy may be written later.
    """
    seconds = whole_seconds(keys.path)
    with told(target):
        return within(seconds, target, partial(_copy, keys, target))


def head(target: Path) -> Head | None:
    """Return the head of a copy, see ``head_of``. Raises KeyFileError, also if its disk does not answer."""
    with told(target):
        return within(ANSWER_SECONDS, target, partial(head_of, target))


def is_current(keys: "KnownChanges", target: Path) -> bool:
    """Tell whether a copy has the newest change, and nothing lies beside it that a process has left which died.

    Raises KeyFileError as ``head`` does.
    """

    def look() -> bool:
        is_left = any(beside(Path(os.path.realpath(target)), suffix).exists() for suffix in (NEW, FORMER))
        return head_of(target) == (keys.serial, keys.keys_id) and not is_left

    with told(target):
        return within(ANSWER_SECONDS, target, look)


class KnownChanges(Protocol):
    """A key file whose changes up to ``serial`` are known."""

    @property
    def path(self) -> Path:
        """Where it is."""

    @property
    def keys_id(self) -> bytes:
        """See ``KeyFile``."""

    @property
    def serial(self) -> int:
        """See ``KeyFile``."""


def later_serial(target: Path, keys: KnownChanges) -> int:
    """Return the number of the last change of a copy of ``keys``, if it is whole and that change is not known; else 0.

    Raises KeyFileError as ``head`` does.
    """

    def look() -> int:
        found = head_of(target)
        if found is None or found.keys_id != keys.keys_id or found.serial <= keys.serial:
            return 0
        return 0 if Inspection(target).flaws else found.serial

    seconds = whole_seconds(keys.path)
    with told(target):
        return within(seconds, target, look)


@contextmanager
def none_written(path: Path, target: Path) -> Iterator[None]:
    """Keep others from copying the key file ``path`` to the folder of ``target`` while the block lasts.

    By the folder itself, which may have other names. Copies elsewhere are written meanwhile. Raises OSError.
    """
    folder = target.parent.stat()
    with hold_byte(beside(path, COPYING), (folder.st_dev << 40 ^ folder.st_ino) % 2**62, wait):
        yield


def whole_seconds(path: Path) -> float:
    """Return for how long the disk of a copy of ``path`` may take. Raises KeyFileError."""
    with told(path):
        return ANSWER_SECONDS + (path.stat().st_size if path.exists() else 0) / PIECE_BYTES


def _copy(keys: KeyFile, target: Path) -> int:
    path, target = keys.path, Path(os.path.realpath(target))  # a link stays, and the file behind it is overwritten
    with told(target), none_written(path, target):
        if target.exists() and target.samefile(path):
            raise KeyFileError(f"{target}: is the key file itself, and no copy of it")
        remove_leftovers(target)
        of_file, pieces = keys.whole()  # in memory: the other disk may be slow, or hang, and others would wait
        found = head_of(target)
        if target.exists() and (found is None or found.keys_id != of_file.keys_id):
            raise KeyFileError(f"{target}: is not a copy of these keys: move it away")
        if found and found.serial > of_file.serial:
            raise KeyFileError(
                f"{target}: is newer than {path}, in whose place an older key file was put: stop the server"
                " and put the newer one there, or move it away"
            )
        write_whole(beside(target, NEW), of_file, pieces, path)
        take_its_place(target)
        return of_file.serial
