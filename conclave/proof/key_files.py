"""Lists the key file and its copies, and locks them so that other processes do not write them."""

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
    """Return the paths of the key file and of its copies, in this order."""
    return [config.keys_path, *(each / KEYS for each in config.vault_copies)]


@contextmanager
def locked_files(own: Path, path: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Context manager that keeps other processes from writing the key file ``own`` or its copy ``path``.

    Yields the file's path with links resolved, and the files in its folder whose names start with its name. Raises
    KeyFileError if the disk of the copy does not respond.
    """
    is_own = path == own
    if not is_own:
        copying.read_head(path)  # detects an unresponsive disk
        path = Path(os.path.realpath(path))
    if not own.exists() or not path.parent.exists():
        yield path, _with_prefix(path)
    else:
        with locks.hold_file(sibling(own, LOCK), wait_silently) if is_own else copying.copy_lock(own, path):
            yield path, _with_prefix(path)


def _with_prefix(path: Path) -> list[Path]:
    paths = path.parent.glob(escape(path.name) + "*")
    return sorted(each for each in paths if each.is_file() and not each.is_symlink())
