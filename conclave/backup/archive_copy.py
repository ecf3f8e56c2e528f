"""Copies the archive: the files that the table names, and its log.

Files of the table are never changed once they are written: a run writes others and removes them. So a copy may share
them with the server, or with an earlier backup. Entries of the log are few, and a run may write one anew under the same
name: these are copied each time.
"""

import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from conclave.archive.faults import one_line
from conclave.archive.files import LOG, is_unfinished
from conclave.archive.snapshot import open_known
from conclave.backup.files import can_share, copy, link, make_folders, names_under, share
from conclave.backup.manifest import ArchiveEntry, BackupError
from conclave.failpoints import reach
from conclave.store.archive import moves
from conclave.store.archive.moves import ArchiveState
from conclave.store.engine import sqlite
from conclave.store.engine.faults import file_size

_DATA = re.compile(r"lifetime=-?\d+/span=-?\d+/[^/]+")
"""The names of files of the table."""


@dataclass(frozen=True)
class Listed:
    """A table at one moment: what a manifest says of it, and the sizes of its files by name."""

    entry: ArchiveEntry
    sizes: Mapping[str, int]


class ArchiveCopy:
    """A copy of an archive that is being made."""

    def __init__(self, archive: Path, target: Path, earlier: Mapping[str, Path]) -> None:
        """``earlier``: files of an earlier backup at the same place, by their names in the archive."""
        self._archive = archive
        self._target = target
        self._earlier = earlier
        self.copied_bytes = 0
        self.shared_bytes = 0

    def missing_bytes(self, listed: Listed) -> int:
        """Return how many bytes of the table's files would have to be copied now. Raises OSError."""
        new = [name for name in self._missing(listed) if not self._known(name, listed.sizes[name])]
        for name in new:
            with suppress(FileNotFoundError):  # a run has replaced it since
                takes_room = not can_share(self._archive / name, self._target)
                return sum(listed.sizes[each] for each in new) if takes_room else 0
        return 0

    def take_files(self, listed: Listed) -> None:
        """Copy or share what is missing of the table's files, and drop what the table does not name.

        What vanishes meanwhile was replaced by a run: it is left out. Raises OSError.
        """
        for name in list(names_under(self._target)) if self._target.is_dir() else ():
            if name not in listed.sizes or (self._target / name).lstat().st_size != listed.sizes[name]:
                (self._target / name).unlink()
        for name in self._missing(listed):
            with suppress(FileNotFoundError):
                self._take(name, listed.sizes[name])
            reach("backup.file_taken")

    def take_log(self) -> None:
        """Copy the table's log. No run may be under way. Raises OSError."""
        make_folders(self._target / LOG)
        for path in sorted((self._archive / LOG).iterdir()):
            is_hidden = path.name.startswith(".")  # Hadoop's sums of files, and what it left behind
            if path.is_file() and not is_hidden and not is_unfinished(path.name):
                copy(path, self._target / LOG / path.name)

    def _missing(self, listed: Listed) -> list[str]:
        return [name for name in sorted(listed.sizes) if not (self._target / name).exists()]

    def _known(self, name: str, size: int) -> Path | None:
        """Return the file of an earlier backup, if one has it."""
        known = self._earlier.get(name)
        return known if known and file_size(known) == size else None

    def _take(self, name: str, size: int) -> None:
        known, target = self._known(name, size), self._target / name
        if (known and link(known, target)) or share(self._archive / name, target):
            self.shared_bytes += size
        else:
            self.copied_bytes += size


def list_table(archive: Path, read_state: Callable[[], ArchiveState]) -> Listed:
    """Return what the table in the folder ``archive`` has, if it is the one that the database knows.

    ``read_state`` asks the database. Raises BackupError.
    """
    import pyarrow  # noqa: PLC0415 - where nothing is archived, it is not paid for
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

    try:
        table, fault = open_known(archive, read_state)
        if fault:
            raise BackupError(fault)
        found = pyarrow.table(table.get_add_actions())
    except (DeltaError, pyarrow.ArrowException, OSError) as error:
        raise BackupError(f"{archive}: {one_line(error)}") from error
    names, sizes, rows = (found[each].to_pylist() for each in ("path", "size_bytes", "num_records"))
    if strange := next((name for name in names if not _DATA.fullmatch(name)), None):
        raise BackupError(f"{archive}: names a file that lies elsewhere: {strange!r}")
    return Listed(
        ArchiveEntry(read_state().archive_id, table.version(), sum(rows)), dict(zip(names, sizes, strict=True))
    )


def find_state(database: Path) -> ArchiveState | None:
    """Return what a database knows of its archive; None if nothing is archived.

    Raises StoreError and sqlite3.Error.
    """
    with closing(sqlite.connect(database, readonly=True)) as connection:
        known = moves.find_state(connection)
        return known if known and (known.version or moves.has_parts(connection)) else None


def state_reader(database: Path) -> Callable[[], ArchiveState]:
    """Return what asks ``database`` for the state of its archive."""

    def read_state() -> ArchiveState:
        known = find_state(database)
        if known is None:
            raise sqlite3.OperationalError("nothing is archived any more")
        return known

    return read_state


def require_pair(database: Path, archive: Path, entry: ArchiveEntry | None) -> None:
    """Raise BackupError unless a copied database and a copied archive belong together, and no file is missing.

    ``entry``: what the manifest says of the archive. Raises StoreError and sqlite3.Error too.
    """
    known = find_state(database)
    if (known is None) != (entry is None):
        raise BackupError(
            f"{database}: {'has no' if known is None else 'has an'} archive, other than the manifest says"
        )
    if known is None:
        return
    listed = list_table(archive, lambda: known)
    if listed.entry != entry:
        raise BackupError(f"{archive}: is at version {listed.entry.version}, other than the manifest says")
    _require_files(archive, listed.sizes.items(), set(names_under(archive)))


def _require_files(archive: Path, wanted: Iterable[tuple[str, int]], there: Collection[str]) -> None:
    for name, size in wanted:
        if name not in there or (archive / name).stat().st_size != size:
            raise BackupError(f"{archive / name}: is missing, or not as long as the table's log says")
