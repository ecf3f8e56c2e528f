"""Prepares the data directory. Only one server may use it, since a server removes the work files in it."""

import errno
import stat
from collections.abc import Iterator
from pathlib import Path

MARKER = ".conclave"
"""The name of the file that marks a folder as a data directory. The server that uses it locks this file."""

_TEXT = "This folder belongs to a Conclave server. Files in work/ are temporary.\n"

LOCKS = (".server-lock", ".cleanup-lock")
"""The suffixes of a database's locks. These files are empty."""

_DATABASE_SUFFIXES = ("", "-wal", "-shm", "-journal", *LOCKS, ".reserve", ".new")
"""The suffixes of a database's own files. The database may be in the data directory itself."""


class DataFolderError(Exception):
    """The folder cannot be the data directory. The message is one line for the operator."""


def prepare(data: Path, database: Path, archive: Path) -> None:
    """Create the data directory if it is missing, and set its mode to 0700.

    An existing folder must be empty, or a data directory already. ``database`` and ``archive`` may be in it.
    Raises DataFolderError without changing anything.
    """
    try:
        require_own(data, database, archive)
        data.mkdir(mode=0o700, exist_ok=True)
        if not (data / MARKER).exists():
            (data / MARKER).touch(mode=0o600)
            (data / MARKER).write_text(_TEXT, encoding="utf-8")
        data.chmod(0o700)
    except OSError as error:
        raise DataFolderError(f"data_path: {data}: {_reason(data, error)}") from error


def require_own(data: Path, database: Path, archive: Path) -> None:
    """Raise DataFolderError if ``data`` cannot be a data directory. Raises OSError if it cannot be read."""
    try:
        status = data.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        raise DataFolderError(f"data_path: {data}: is a file, not a folder")
    if (data / MARKER).is_file():
        return
    if status.st_mode & (stat.S_ISVTX | stat.S_IWOTH):
        raise DataFolderError(f"data_path: {data}: is world-writable; name a folder of its own")
    foreign = next(_foreign(data, database, archive), None)
    if foreign and not (data / MARKER).is_file():  # another process may have created it in between
        raise DataFolderError(
            f"data_path: {data}: contains {foreign}, which is not Conclave's; name a folder of its own"
        )


def _foreign(data: Path, database: Path, archive: Path) -> Iterator[str]:
    """Yield the names of foreign files in a folder without the file MARKER."""
    for each in data.iterdir():
        if each in (archive, data / "archive") and each.is_dir():
            yield from (f"{each.name}/{name}" for name in _unexpected_in_archive(each))
        elif each in (database.with_suffix(".vault"), *archive.parents) or (
            each.name == "lost+found" and data.is_mount()
        ):
            continue
        elif data != database.parent or each.name not in {database.name + suffix for suffix in _DATABASE_SUFFIXES}:
            yield each.name


def _unexpected_in_archive(folder: Path) -> Iterator[str]:
    for each in folder.iterdir():
        if each.name != "_delta_log" and not each.name.startswith("lifetime="):
            yield each.name


def require_parent(data: Path) -> None:
    """Raise DataFolderError if the parent folder of ``data`` does not exist."""
    if not data.parent.is_dir():
        raise DataFolderError(f"data_path: {data}: {_NO_PARENT.format(data.parent)}")


_NO_PARENT = "there is no folder {}; is its disk mounted?"


def _reason(data: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return _NO_PARENT.format(data.parent)
    return f"cannot be used: {error.strerror}"


def existing_folder(folder: Path) -> Path:
    """Return a folder, or its nearest existing parent."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder
