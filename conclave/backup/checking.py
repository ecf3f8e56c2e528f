"""Checks a backup: every file is there, is as it was, was whole, and database and archive belong together."""

import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from conclave.backup import archive_copy, manifest
from conclave.backup.files import names_under, sum_of
from conclave.backup.manifest import BackupError, FileEntry, Manifest
from conclave.store.engine.faults import StoreError

MOST_FAULTS = 1000
"""At most 1,000 faults are told."""

_ALTERED = "is damaged: its sum is another one"


class Fault(NamedTuple):
    """What is wrong with a backup, in one line."""

    text: str
    name: str = ""
    """Of the file; "" if it is about more than one."""
    is_damage: bool = False
    """Messages of the archive are damaged, and all else is there."""


def faults_of(folder: Path, told: Manifest) -> list[Fault]:
    """Read every file of the backup in ``folder``, and return what is not as it should be.

    Raises BackupError if the backup was removed meanwhile.
    """
    faults = [
        Fault(f"{folder / name}: is not in the manifest", name)
        for name in names_under(folder)
        if name not in told.files and name != manifest.NAME
    ]
    for name, entry in sorted(told.files.items()):
        if fault := _fault_of(folder / name, entry):
            is_damage = fault == _ALTERED and name.startswith(f"{manifest.ARCHIVE}/lifetime=")
            faults.append(Fault(f"{folder / name}: {fault}", name, is_damage))
    if all(fault.is_damage for fault in faults):
        try:
            archive_copy.require_pair(folder / manifest.DATABASE, folder / manifest.ARCHIVE, told.archive)
        except (BackupError, StoreError, sqlite3.Error) as error:
            faults.append(Fault(str(error)))
        else:
            faults += _damage(folder, told)
    if faults:
        manifest.require_there(folder)
    return faults[:MOST_FAULTS]


def require_whole(folder: Path, *, damaged: bool = False) -> tuple[Manifest, list[Fault]]:
    """Return the manifest of the backup in ``folder``, and what of its archive is damaged. Raises BackupError.

    ``damaged``: that some messages of the archive are damaged is accepted; otherwise nothing may be.
    """
    told = manifest.read(folder)
    faults = faults_of(folder, told)
    refused = [fault for fault in faults if not (damaged and fault.is_damage)]
    if refused:
        more = f" (and {len(refused) - 1:,} more: see `conclave backup verify`)" if len(refused) > 1 else ""
        only = all(fault.is_damage for fault in refused)
        advice = ": take another backup, or see docs/operations/backup.md#a-damaged-archive" if only else ""
        raise BackupError(f"{refused[0].text}{more}{advice}")
    return told, faults


def _damage(folder: Path, told: Manifest) -> Iterator[Fault]:
    """Yield what was damaged when the backup was made."""
    for name, fault in sorted(told.faults.items()):
        yield Fault(f"{folder / name}: was damaged when it was backed up: {fault}", name, is_damage=True)


def _fault_of(path: Path, entry: FileEntry) -> str:
    """Return in one line what is wrong with a file; "" if nothing is."""
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            return "is not a file"
        if found.st_size != entry.bytes:
            return f"has {found.st_size:,} bytes, but had {entry.bytes:,}"
        return "" if sum_of(path) == entry.sha256 else _ALTERED
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return str(error.strerror)
