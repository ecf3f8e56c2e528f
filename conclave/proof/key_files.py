"""The key file and its copies as files: which there are, and how they are looked at while no other process writes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path

from conclave.config.settings import KEYS, Config
from conclave.keys import copying
from conclave.keys.file import wait_silently
from conclave.keys.replacing import LOCK, sibling
from conclave.system import locks


def known(config: Config) -> list[Path]:
    """Return the key file, first, and those of the copies of the vault."""
    return [config.keys_path, *(each / KEYS for each in config.vault_copies)]


@contextmanager
def undisturbed(own: Path, path: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Keep other processes from writing the key file ``own``, or its copy ``path``, while the block lasts.

    Yields where the file is, which may be behind a link, and the files there whose names begin as its name does. Raises
    KeyFileError if the disk of the copy does not answer.
    """
    is_own = path == own
    if not is_own:
        copying.read_head(path)  # before anything waits for that disk
        path = Path(os.path.realpath(path))
    if not own.exists() or not path.parent.exists():
        yield path, _beginning(path)
    else:
        with locks.hold_file(sibling(own, LOCK), wait_silently) if is_own else copying.copy_lock(own, path):
            yield path, _beginning(path)


def _beginning(path: Path) -> list[Path]:
    found = path.parent.glob(escape(path.name) + "*")
    return sorted(each for each in found if each.is_file() and not each.is_symlink())
