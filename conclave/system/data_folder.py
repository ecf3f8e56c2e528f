"""Prepares the data directory. It is one server's alone, since its work files are removed."""

import errno
import stat
from collections.abc import Iterator
from pathlib import Path

MARK = ".conclave"
"""The name of a file that makes a folder a data directory. The server that uses it locks this file."""

_TEXT = "This folder is a Conclave server's alone. What is in work/ comes and goes.\n"

LOCKS = (".server-lock", ".cleanup-lock")
"""The suffixes of a database's locks. These files are empty."""

_OF_DATABASES = ("", "-wal", "-shm", "-journal", *LOCKS, ".reserve", ".new")
"""The suffixes of a database's own files. A database may lie in the data directory itself."""


class DataFolderError(Exception):
    """The folder cannot be the data directory. The message is one line for the operator."""


def prepare(data: Path, database: Path, archive: Path) -> None:
    """Make the data directory, or take one that is there. Its mode is 0700 afterwards.

    A folder that is there has to be empty, or a data directory already. ``database`` and ``archive`` may lie in it.
    Raises DataFolderError, and has changed nothing then.
    """
    try:
        require_own(data, database, archive)
        data.mkdir(mode=0o700, exist_ok=True)
        if not (data / MARK).exists():
            (data / MARK).touch(mode=0o600)
            (data / MARK).write_text(_TEXT, encoding="utf-8")
        data.chmod(0o700)
    except OSError as error:
        raise DataFolderError(f"data_path: {data}: {_reason(data, error)}") from error


def require_own(data: Path, database: Path, archive: Path) -> None:
    """Raise DataFolderError if ``data`` is another user's folder, or OSError if that cannot be told."""
    try:
        found = data.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        raise DataFolderError(f"data_path: {data}: is a file, not a folder")
    if (data / MARK).is_file():
        return
    if found.st_mode & (stat.S_ISVTX | stat.S_IWOTH):
        raise DataFolderError(f"data_path: {data}: everybody can write there; name a folder of its own")
    foreign = next(_foreign(data, database, archive), None)
    if foreign and not (data / MARK).is_file():  # another process may have made it meanwhile
        raise DataFolderError(f"data_path: {data}: holds {foreign}, which is not Conclave's; name a folder of its own")


def _foreign(data: Path, database: Path, archive: Path) -> Iterator[str]:
    """Yield what may not be in a folder without the file MARK, which only a server makes."""
    for each in data.iterdir():
        if each in (archive, data / "archive") and each.is_dir():
            yield from (f"{each.name}/{name}" for name in _not_of_a_table(each))
        elif each in (database.with_suffix(".vault"), *archive.parents) or (
            each.name == "lost+found" and data.is_mount()
        ):
            continue
        elif data != database.parent or each.name not in {database.name + suffix for suffix in _OF_DATABASES}:
            yield each.name


def _not_of_a_table(folder: Path) -> Iterator[str]:
    for each in folder.iterdir():
        if each.name != "_delta_log" and not each.name.startswith("lifetime="):
            yield each.name


def require_parent(data: Path) -> None:
    """Raise DataFolderError if ``data`` cannot be made, since there is no folder for it."""
    if not data.parent.is_dir():
        raise DataFolderError(f"data_path: {data}: {_NO_PARENT.format(data.parent)}")


_NO_PARENT = "there is no folder {}; is its disk mounted?"


def _reason(data: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return _NO_PARENT.format(data.parent)
    return f"cannot be used: {error.strerror}"
