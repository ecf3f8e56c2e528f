"""Copies the archive: the table's data files and its log.

Data files are immutable: a run writes new ones and removes old ones. So a backup may share them with the server, or
with an earlier backup. Log entries are small, and a run may rewrite one, so they are always copied.
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
"""The pattern of the names of data files."""


@dataclass(frozen=True)
class TableListing:
    """The state of a table: its manifest entry, and the sizes of its files by name."""

    entry: ArchiveEntry
    sizes: Mapping[str, int]


class ArchiveCopy:
    """Copies an archive to a backup."""

    def __init__(self, archive: Path, target: Path, earlier: Mapping[str, Path]) -> None:
        """``earlier``: files of an earlier backup in the same folder, by their names in the archive."""
        self._archive = archive
        self._target = target
        self._earlier = earlier
        self.copied_bytes = 0
        self.shared_bytes = 0

    def missing_bytes(self, listing: TableListing) -> int:
        """Return how many bytes of data files have to be copied now. Raises OSError."""
        new = [name for name in self._missing(listing) if not self._earlier_file(name, listing.sizes[name])]
        for name in new:
            with suppress(FileNotFoundError):  # a run has replaced the file since
                takes_room = not can_share(self._archive / name, self._target)
                return sum(listing.sizes[each] for each in new) if takes_room else 0
        return 0

    def copy_files(self, listing: TableListing) -> None:
        """Copy or share missing data files, and delete files that the table does not have.

        Skips files that a run replaces during the copy. Raises OSError.
        """
        for name in list(names_under(self._target)) if self._target.is_dir() else ():
            if name not in listing.sizes or (self._target / name).lstat().st_size != listing.sizes[name]:
                (self._target / name).unlink()
        for name in self._missing(listing):
            with suppress(FileNotFoundError):
                self._copy(name, listing.sizes[name])
            reach("backup.file_taken")

    def copy_log(self) -> None:
        """Copy the table's log. No run may be active. Raises OSError."""
        make_folders(self._target / LOG)
        for path in sorted((self._archive / LOG).iterdir()):
            is_hidden = path.name.startswith(".")  # Hadoop's checksums and leftovers
            if path.is_file() and not is_hidden and not is_unfinished(path.name):
                copy(path, self._target / LOG / path.name)

    def _missing(self, listing: TableListing) -> list[str]:
        return [name for name in sorted(listing.sizes) if not (self._target / name).exists()]

    def _earlier_file(self, name: str, size: int) -> Path | None:
        """Return the file of an earlier backup, or None."""
        path = self._earlier.get(name)
        return path if path and file_size(path) == size else None

    def _copy(self, name: str, size: int) -> None:
        earlier_file, target = self._earlier_file(name, size), self._target / name
        if (earlier_file and link(earlier_file, target)) or share(self._archive / name, target):
            self.shared_bytes += size
        else:
            self.copied_bytes += size


def list_table(archive: Path, read_state: Callable[[], ArchiveState]) -> TableListing:
    """Return the listing of the table in the folder ``archive``.

    ``read_state``: reads the state of the archive from the database. Raises BackupError if the table cannot be read, or
    does not match that state.
    """
    import pyarrow  # noqa: PLC0415 - loaded only if there is an archive
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

    try:
        table, fault = open_known(archive, read_state)
        if fault:
            raise BackupError(fault)
        actions = pyarrow.table(table.get_add_actions())
    except (DeltaError, pyarrow.ArrowException, OSError) as error:
        raise BackupError(f"{archive}: {one_line(error)}") from error
    names, sizes, rows = (actions[each].to_pylist() for each in ("path", "size_bytes", "num_records"))
    if foreign_name := next((name for name in names if not _DATA.fullmatch(name)), None):
        raise BackupError(f"{archive}: the table has a file outside of its folder: {foreign_name!r}")
    return TableListing(
        ArchiveEntry(read_state().archive_id, table.version(), sum(rows)), dict(zip(names, sizes, strict=True))
    )


def find_state(database: Path) -> ArchiveState | None:
    """Return the state of a database's archive; None if nothing is archived. Raises StoreError and sqlite3.Error."""
    with closing(sqlite.connect(database, readonly=True)) as connection:
        state = moves.find_state(connection)
        return state if state and (state.version or moves.has_parts(connection)) else None


def state_reader(database: Path) -> Callable[[], ArchiveState]:
    """Return a function that reads the state of the archive from ``database``."""

    def read_state() -> ArchiveState:
        state = find_state(database)
        if state is None:
            raise sqlite3.OperationalError("the archive was removed during the backup")
        return state

    return read_state


def require_pair(database: Path, archive: Path, entry: ArchiveEntry | None) -> None:
    """Raise BackupError unless a copied database and a copied archive match, and no file is missing.

    ``entry``: the archive in the manifest. Also raises StoreError and sqlite3.Error.
    """
    state = find_state(database)
    if (state is None) != (entry is None):
        raise BackupError(f"{database}: {'has no' if state is None else 'has an'} archive, unlike the manifest")
    if state is None:
        return
    listing = list_table(archive, lambda: state)
    if listing.entry != entry:
        raise BackupError(f"{archive}: is at version {listing.entry.version}, unlike the manifest")
    _require_files(archive, listing.sizes.items(), set(names_under(archive)))


def _require_files(archive: Path, expected: Iterable[tuple[str, int]], existing: Collection[str]) -> None:
    for name, size in expected:
        if name not in existing or (archive / name).stat().st_size != size:
            raise BackupError(f"{archive / name}: is missing, or its size differs from the table's log")
