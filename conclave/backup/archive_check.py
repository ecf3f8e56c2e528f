"""Looks whether a copied archive is whole: a file on a disk may be altered without becoming shorter.

A file that an earlier backup has must still be as it was then. Of any other file each message is compared with its
checksum. What is damaged is taken from where it is whole, if it is anywhere.
"""

from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from conclave.archive import integrity
from conclave.backup import manifest
from conclave.backup.destination import kept_in
from conclave.backup.files import link, share, sum_of
from conclave.backup.manifest import FileEntry, Manifest
from conclave.store.archive import moves
from conclave.store.engine import sqlite

SHOWN = 3
"""At most 3 groups, or differences, are named in a line."""


@dataclass(frozen=True)
class Former:
    """A complete backup at the same place."""

    path: Path
    manifest: Manifest


@dataclass
class Looked:
    """What was found."""

    entries: dict[str, FileEntry] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    """What is wrong in the copy, by file."""
    notes: list[str] = field(default_factory=list)
    """What is so elsewhere, a line each."""


class ArchiveCheck:
    """Looks at the archive in the folder of a backup, and mends what it can."""

    def __init__(self, live: Path, here: Path, former: Former | None) -> None:
        """``live``: the archive's folder. ``here``: that of the backup. ``former``: the newest complete backup."""
        self._live = live
        self._here = here
        self._former = former
        self._database = here / manifest.DATABASE
        self._done = Looked()

    def look(self, names: Collection[str]) -> Looked:
        """Look at the data files ``names``, paths in the backup, and at the table. Raises OSError and sqlite3.Error."""
        for name in names:
            self._done.entries[name] = self._entry(name)
        if names and not self._done.faults and (fault := table_fault(self._database, self._here / manifest.ARCHIVE)):
            self._done.faults[manifest.ARCHIVE] = fault
        return self._done

    def _entry(self, name: str) -> FileEntry:
        """Return size and sum of a file, which is replaced before if it is damaged and is whole elsewhere."""
        target, live = self._here / name, self._live / name.partition("/")[2]
        known = self._known(name)
        if not (fault := self._fault_of(target, known)):
            # Where an earlier backup's file is linked, damage of the server's own is not to go unnoticed.
            if known and (own := self._fault_of_own(live, target, known)):
                self._done.notes.append(f"{live}: {own}; it is whole in {target}")
            return known or entry_of(target)
        for source, told in self._elsewhere(name, live):
            if _is_another(source, target) and not self._fault_of(source, told):
                try:
                    if told is None or not link(source, target):
                        share(source, target)
                except FileNotFoundError:
                    continue  # a run has removed the server's own meanwhile
                damaged = live if told or not self._former else self._former.path / name
                self._done.notes.append(f"{damaged}: {fault}; it is whole in {source}")
                return entry_of(target)
        self._done.faults[name] = fault
        return entry_of(target)

    def _fault_of_own(self, live: Path, target: Path, known: FileEntry) -> str:
        """Return what is wrong with the server's own file, if it is another than ``target``. A run may remove it."""
        with suppress(FileNotFoundError):
            fault = self._fault_of(live, known) if _is_another(live, target) else ""
            return fault if live.exists() else ""
        return ""

    def _known(self, name: str) -> FileEntry | None:
        """Return what the last backup knows of a file, if it is linked to that one, and was whole then."""
        if self._former is None or name in self._former.manifest.faults:
            return None
        known, there = self._former.manifest.files.get(name), self._former.path / name
        return known if known and there.exists() and there.samefile(self._here / name) else None

    def _fault_of(self, path: Path, told: FileEntry | None) -> str:
        """Return what is wrong with a file; ``told``: what a backup says of it."""
        is_as_told = told is not None and told == entry_of(path)
        if is_as_told and self._former:
            return ""
        fault = fault_of(path, self._database)
        return fault or ("" if told is None or is_as_told else "is not as it was when it was backed up")

    def _elsewhere(self, name: str, live: Path) -> Iterator[tuple[Path, FileEntry | None]]:
        """Yield where else the file is, and what is told of it: the server's own first, then the newest backup's."""
        if live.is_file():
            yield live, None
        found = [
            (each.manifest.number, each.path / name, each.manifest.files[name])
            for each in kept_in(self._here.parent)
            if each.manifest and name in each.manifest.files and name not in each.manifest.faults
        ]
        for _, path, entry in sorted(found, key=lambda each: each[0], reverse=True):
            if path.is_file():
                yield path, entry


def _is_another(path: Path, target: Path) -> bool:
    """Return whether ``path`` is a file, and not ``target``. One of the server's may go at any time."""
    with suppress(FileNotFoundError):
        return path.is_file() and not path.samefile(target)
    return False


def fault_of(path: Path, database: Path) -> str:
    """Return in one line what is wrong with the messages of a data file; "" if nothing is.

    ``database``: has the names of groups. Raises sqlite3.Error.
    """
    try:
        altered = integrity.altered_in(path)
    except integrity.UnreadableError as error:
        return f"cannot be read: {error}"
    if not altered:
        return ""
    with closing(sqlite.connect(database, readonly=True)) as connection:
        named = integrity.names(connection, sorted(altered)[:SHOWN])
    more = [f"{len(altered) - SHOWN:,} more groups"] if len(altered) > SHOWN else []
    count = altered.total()
    said = "1 message is not as it was" if count == 1 else f"{count:,} messages are not as they were"
    return f"{said} archived, of {', '.join([*named.values(), *more])}"


def table_fault(database: Path, archive: Path) -> str:
    """Return in one line how a table differs from the index of its database; "" if it does not.

    After a run that did not come to its end they may differ, and nothing is compared. Raises sqlite3.Error.
    """
    with closing(sqlite.connect(database, readonly=True)) as connection:
        state = moves.find_state(connection)
        if state is None or state.unerased:
            return ""
        try:
            faults = integrity.index_faults(archive, moves.each_part(connection))
        except integrity.UnreadableError as error:
            return f"cannot be read: {error}"
        named = integrity.names(connection, {key[0] for key in list(faults)[:SHOWN]})
    lines = [f"{named[key[0]]}, {integrity.place(key)}: {lines[0]}" for key, lines in list(faults.items())[:SHOWN]]
    return "; ".join([*lines, *([f"{len(faults) - SHOWN:,} more differences"] if len(faults) > SHOWN else [])])


def entry_of(path: Path) -> FileEntry:
    """Return size and sum of a file; no sum if it cannot be read. Raises OSError if there is none."""
    size = path.stat().st_size
    with suppress(OSError):  # as with a bad block: the rest of the backup is worth having
        return FileEntry(size, sum_of(path))
    return FileEntry(size, "")
