"""Work folders: each process with a Spark session has one for its temporary files.

A lock on the folder (flock) shows that it is in use. The process holds it, and its Java process too. The kernel
releases the lock when the last of them has ended, even by a crash. A process id would not do: the system uses ids
again.
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
    """A folder for this process alone. No other process removes it while any has ``descriptor`` open."""

    def __init__(self, work: Path) -> None:
        """Make the folder in ``work``, which is made too if it is missing. Raises OSError."""
        work.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            self.path = Path(tempfile.mkdtemp(dir=work))
            # Another process may find the folder before it is locked, and remove it: then this one makes another.
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                self.descriptor = _lock(self.path)
                return

    def empty(self) -> None:
        """Remove all files. Folders and sockets stay, since a warm session still uses them. Raises OSError."""
        for folder, _, names in os.walk(self.path):
            for path in (Path(folder, name) for name in names):
                if not path.is_socket():
                    path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder with its content, as far as that is possible now. The next run tries again."""
        shutil.rmtree(self.path, ignore_errors=True)


def remove_dead(work: Path) -> list[str]:
    """Remove the folders in ``work`` that no process holds; return a line for each that could not be removed.

    Links are not followed, and nothing but folders is touched.
    """
    return [fault for path in _folders(work) if (fault := _remove_if_dead(path))]


def _folders(work: Path) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError), os.scandir(work) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


def _remove_if_dead(path: Path) -> str:
    """Remove a folder, unless a process holds it; return why that failed, "" if it did not."""
    try:
        descriptor = _lock(path)
        try:
            shutil.rmtree(path, ignore_errors=True)  # as much as can be removed
            shutil.rmtree(path)  # and why that is not all
        finally:
            os.close(descriptor)
    except (FileNotFoundError, BlockingIOError):  # it is gone, or in use
        return ""
    except OSError as error:
        return f"{path}: what a process left there that has ended cannot be removed: {error.strerror}"
    return ""


def _lock(path: Path) -> int:
    """Open a folder and lock it; return the descriptor.

    Raises BlockingIOError if it is locked, FileNotFoundError if it was removed meanwhile, another OSError.
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
