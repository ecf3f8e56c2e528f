"""Work folders for the temporary files of processes with a Spark session.

A lock on the folder (flock), held by the process and its Java, shows that it is in use. The kernel releases it when the
last of them has ended, even by a crash. Process ids are not used, since the system reuses them.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class WorkFolder:
    """A work folder of this process. Other processes do not remove it while any process has ``descriptor`` open."""

    def __init__(self, work: Path) -> None:
        """Create the folder in ``work``, and ``work`` if it is missing. Raises OSError."""
        work.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            self.path = Path(tempfile.mkdtemp(dir=work))
            # Another process may remove the folder before it is locked: then try again.
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                self.descriptor = _lock(self.path)
                return

    def empty(self) -> None:
        """Remove all files, but not folders and sockets, which a running session uses. Raises OSError."""
        for folder, _, names in os.walk(self.path):
            for path in (Path(folder, name) for name in names):
                if not path.is_socket():
                    path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder and its contents. Ignores errors, since the next run tries again."""
        shutil.rmtree(self.path, ignore_errors=True)


def remove_dead(work: Path) -> list[str]:
    """Remove unlocked folders in ``work``; return a line for each that could not be removed.

    Ignores files and symbolic links.
    """
    return [fault for path in _folders(work) if (fault := _remove_unless_locked(path))]


def _folders(work: Path) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError), os.scandir(work) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


def _remove_unless_locked(path: Path) -> str:
    """Remove a folder unless it is locked; return an error or ""."""
    try:
        descriptor = _lock(path)
        try:
            shutil.rmtree(path, ignore_errors=True)  # remove as much as possible
            shutil.rmtree(path)  # then raise for the rest
        finally:
            os.close(descriptor)
    except (FileNotFoundError, BlockingIOError):  # removed or in use
        return ""
    except OSError as error:
        return f"{path}: leftovers of an ended process cannot be removed: {error.strerror}"
    return ""


def _lock(path: Path) -> int:
    """Open a folder and lock it; return the descriptor.

    Raises BlockingIOError if it is locked, FileNotFoundError if another process has removed it, or another OSError.
    """
    descriptor = os.open(path, _OPEN)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_in_place = os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        os.close(descriptor)
        raise
    if not is_in_place:
        os.close(descriptor)
        raise FileNotFoundError(path)
    return descriptor
