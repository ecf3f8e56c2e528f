"""Checks a backup: every file is there, is as it was, and database and archive belong together."""

import sqlite3
import stat
from pathlib import Path

from conclave.backup import archive_copy, manifest
from conclave.backup.files import names_under, sum_of
from conclave.backup.manifest import BackupError, FileEntry, Manifest
from conclave.store.faults import StoreError

MOST_FAULTS = 1000
"""At most 1,000 faults are told."""


def faults_of(folder: Path, told: Manifest) -> list[str]:
    """Read every file of the backup in ``folder``, and return what is not as its manifest says, a line each.

    Raises BackupError if the backup was removed meanwhile.
    """
    faults = [
        f"{folder / name}: is not in the manifest"
        for name in names_under(folder)
        if name not in told.files and name != manifest.NAME
    ]
    for name, entry in sorted(told.files.items()):
        if fault := _fault_of(folder / name, entry):
            faults.append(f"{folder / name}: {fault}")
    if not faults:
        try:
            archive_copy.require_pair(folder / manifest.DATABASE, folder / manifest.ARCHIVE, told.archive)
        except (BackupError, StoreError, sqlite3.Error) as error:
            faults.append(str(error))
    if faults:
        manifest.require_there(folder)
    return faults[:MOST_FAULTS]


def require_whole(folder: Path) -> Manifest:
    """Return the manifest of the backup in ``folder``, all of which is as it was. Raises BackupError."""
    told = manifest.read(folder)
    if faults := faults_of(folder, told):
        more = f" (and {len(faults) - 1:,} more: see `conclave backup verify`)" if len(faults) > 1 else ""
        raise BackupError(f"{faults[0]}{more}")
    return told


def _fault_of(path: Path, entry: FileEntry) -> str:
    """Return in one line what is wrong with a file; "" if nothing is."""
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            return "is not a file"
        if found.st_size != entry.bytes:
            return f"has {found.st_size:,} bytes, but had {entry.bytes:,}"
        return "" if sum_of(path) == entry.sha256 else "is damaged: its sum is another one"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return str(error.strerror)
