"""Checks a backup: while it is made, the archive; later, that all files exist and are undamaged, and match.

While a backup is made, its archive is checked for damage that does not change the size of a file. A file that an
earlier backup has must still have the same checksum. In other files the checksum of each message is verified. A damaged
file is replaced by an undamaged copy, if there is one.
"""

import sqlite3
import stat
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from conclave.archive import integrity
from conclave.archive.faults import UnreadableArchiveError
from conclave.backup import archive_copy, manifest
from conclave.backup.destination import backups_in
from conclave.backup.files import link, names_under, share, sum_of
from conclave.backup.manifest import BackupError, FileEntry, Manifest
from conclave.store.archive import moves, reclaiming
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError

MAX_FAULTS = 1000
"""The maximum number of faults to return."""

_ALTERED = "is damaged: its checksum differs"


class BackupFault(NamedTuple):
    """A fault of a backup, in one line."""

    text: str
    name: str = ""
    """The name of the file; "" if the fault is not about a single file."""
    is_damage: bool = False
    """Whether the fault only concerns archived messages."""


def find_faults(folder: Path, contents: Manifest) -> list[BackupFault]:
    """Read all files of the backup in ``folder``, and return the faults.

    Raises BackupError if the backup was removed in the meantime.
    """
    faults = [
        BackupFault(f"{folder / name}: is not in the manifest", name)
        for name in names_under(folder)
        if name not in contents.files and name != manifest.NAME
    ]
    for name, entry in sorted(contents.files.items()):
        if fault := _fault_of(folder / name, entry):
            is_damage = fault == _ALTERED and name.startswith(f"{manifest.ARCHIVE}/lifetime=")
            faults.append(BackupFault(f"{folder / name}: {fault}", name, is_damage))
    if all(fault.is_damage for fault in faults):
        try:
            archive_copy.require_pair(folder / manifest.DATABASE, folder / manifest.ARCHIVE, contents.archive)
        except (BackupError, StoreError, sqlite3.Error) as error:
            faults.append(BackupFault(str(error)))
        else:
            faults += _damage(folder, contents)
    if faults:
        manifest.require_present(folder)
    return faults[:MAX_FAULTS]


def require_whole(folder: Path, *, damaged: bool = False) -> tuple[Manifest, list[BackupFault]]:
    """Return the manifest of the backup in ``folder``, and the accepted damage. Raises BackupError.

    ``damaged``: accept damaged messages of the archive, but no other fault.
    """
    contents = manifest.read(folder)
    faults = find_faults(folder, contents)
    refused = [fault for fault in faults if not (damaged and fault.is_damage)]
    if refused:
        more = f" (and {len(refused) - 1:,} more: see `conclave backup verify`)" if len(refused) > 1 else ""
        is_only_damage = all(fault.is_damage for fault in refused)
        advice = ": take another backup, or see docs/operations/backup.md#a-damaged-archive" if is_only_damage else ""
        raise BackupError(f"{refused[0].text}{more}{advice}")
    return contents, faults


def _damage(folder: Path, contents: Manifest) -> Iterator[BackupFault]:
    """Yield the damage that was already known when the backup was made."""
    for name, fault in sorted(contents.faults.items()):
        yield BackupFault(f"{folder / name}: was damaged when it was backed up: {fault}", name, is_damage=True)


def _fault_of(path: Path, entry: FileEntry) -> str:
    """Return in one line the fault of a file, or ""."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return "is not a file"
        if status.st_size != entry.bytes:
            return f"has {status.st_size:,} bytes instead of {entry.bytes:,}"
        return "" if sum_of(path) == entry.sha256 else _ALTERED
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return str(error.strerror)


MAX_SHOWN = 3
"""The maximum number of groups, or differences, in one line."""


@dataclass(frozen=True)
class FormerBackup:
    """A complete backup in the same folder."""

    path: Path
    manifest: Manifest


@dataclass
class ArchiveCheckResult:
    """The result of a check."""

    entries: dict[str, FileEntry] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    """The damage in the backup, by file."""
    notes: list[str] = field(default_factory=list)
    """The damage elsewhere, one line each."""


class ArchiveCheck:
    """Checks the archive of a backup, and repairs damaged files."""

    def __init__(self, archive: Path, backup: Path, former: FormerBackup | None) -> None:
        """``archive``: the archive's folder. ``backup``: that of the backup. ``former``: the newest complete backup."""
        self._archive = archive
        self._backup = backup
        self._former = former
        self._database = backup / manifest.DATABASE
        self._result = ArchiveCheckResult()

    def run(self, names: Collection[str]) -> ArchiveCheckResult:
        """Check the data files ``names``, paths in the backup, and the table. Raises OSError and sqlite3.Error."""
        for name in names:
            self._result.entries[name] = self._entry(name)
        if (
            names
            and not self._result.faults
            and (fault := table_fault(self._database, self._backup / manifest.ARCHIVE))
        ):
            self._result.faults[manifest.ARCHIVE] = fault
        return self._result

    def _entry(self, name: str) -> FileEntry:
        """Check a file, replace it by an undamaged copy if necessary, and return its size and checksum."""
        target, own_file = self._backup / name, self._archive / name.partition("/")[2]
        entry = self._former_entry(name)
        if not (fault := self._fault_of(target, entry)):
            # The file may be a link to an earlier backup's, so check the server's file too.
            if entry and (own_fault := self._fault_of_own(own_file, target, entry)):
                self._result.notes.append(f"{own_file}: {own_fault}; {target} is undamaged")
            return entry or entry_of(target)
        for source, expected in self._other_copies(name, own_file):
            if _is_other_file(source, target) and not self._fault_of(source, expected):
                try:
                    if expected is None or not link(source, target):
                        share(source, target)
                except FileNotFoundError:
                    continue  # a run has removed the server's file
                damaged = own_file if expected or not self._former else self._former.path / name
                self._result.notes.append(f"{damaged}: {fault}; {source} is undamaged")
                return entry_of(target)
        self._result.faults[name] = fault
        return entry_of(target)

    def _fault_of_own(self, own_file: Path, target: Path, entry: FileEntry) -> str:
        """Return the fault of the server's file, or "". A run may remove the file at any time."""
        with suppress(FileNotFoundError):
            fault = self._fault_of(own_file, entry) if _is_other_file(own_file, target) else ""
            return fault if own_file.exists() else ""
        return ""

    def _former_entry(self, name: str) -> FileEntry | None:
        """Return the entry of a file in the former backup, if the file is linked to it and was undamaged."""
        if self._former is None or name in self._former.manifest.faults:
            return None
        entry, former_file = self._former.manifest.files.get(name), self._former.path / name
        return entry if entry and former_file.exists() and former_file.samefile(self._backup / name) else None

    def _fault_of(self, path: Path, expected: FileEntry | None) -> str:
        """Return the fault of a file, or "". ``expected``: its entry in a backup."""
        is_expected = expected is not None and expected == entry_of(path)
        if is_expected and self._former:
            return ""
        fault = fault_of(path, self._database)
        return fault or ("" if expected is None or is_expected else "has changed since it was backed up")

    def _other_copies(self, name: str, own_file: Path) -> Iterator[tuple[Path, FileEntry | None]]:
        """Yield other copies of a file with their entries: the server's first, then of backups, the newest first."""
        if own_file.is_file():
            yield own_file, None
        copies = [
            (each.manifest.number, each.path / name, each.manifest.files[name])
            for each in backups_in(self._backup.parent)
            if each.manifest and name in each.manifest.files and name not in each.manifest.faults
        ]
        for _, path, entry in sorted(copies, key=lambda each: each[0], reverse=True):
            if path.is_file():
                yield path, entry


def _is_other_file(path: Path, target: Path) -> bool:
    """Return whether ``path`` is a file other than ``target``. A run may remove it at any time."""
    with suppress(FileNotFoundError):
        return path.is_file() and not path.samefile(target)
    return False


def fault_of(path: Path, database: Path) -> str:
    """Return in one line how the messages of a data file are damaged, or "".

    ``database``: for the names of groups. Raises sqlite3.Error.
    """
    try:
        altered = integrity.altered_in(path)
    except UnreadableArchiveError as error:
        return f"cannot be read: {error}"
    if not altered:
        return ""
    with closing(sqlite.connect(database, readonly=True)) as connection:
        names = integrity.group_names(connection, sorted(altered)[:MAX_SHOWN])
    more = [f"{len(altered) - MAX_SHOWN:,} more groups"] if len(altered) > MAX_SHOWN else []
    count = altered.total()
    damage = "1 message is damaged" if count == 1 else f"{count:,} messages are damaged"
    return f"{damage}, of {', '.join([*names.values(), *more])}"


def table_fault(database: Path, archive: Path) -> str:
    """Return in one line how a table differs from the index of its database, or "".

    After an aborted run they may differ, so nothing is compared. Raises sqlite3.Error.
    """
    with closing(sqlite.connect(database, readonly=True)) as connection:
        state = moves.find_state(connection)
        if state is None or state.unerased:
            return ""
        unreadable = {
            partition: usage.dead.messages + usage.returned
            for partition, usage in reclaiming.shares(connection).items()
        }
        try:
            faults = integrity.index_faults(archive, moves.each_part(connection), unreadable)
        except UnreadableArchiveError as error:
            return f"cannot be read: {error}"
        names = integrity.group_names(connection, {key[0] for key in list(faults)[:MAX_SHOWN]})
    shown = list(faults.items())[:MAX_SHOWN]
    lines = [f"{names[key[0]]}, {integrity.partition_name(key)}: {lines[0]}" for key, lines in shown]
    return "; ".join([*lines, *([f"{len(faults) - MAX_SHOWN:,} more differences"] if len(faults) > MAX_SHOWN else [])])


def entry_of(path: Path) -> FileEntry:
    """Return the size and checksum of a file; "" if it cannot be read. Raises OSError if it does not exist."""
    size = path.stat().st_size
    with suppress(OSError):  # such as a bad block: the other files of the backup are still useful
        return FileEntry(size, sum_of(path))
    return FileEntry(size, "")
