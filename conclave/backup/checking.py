"""Checks a backup: all files exist and are undamaged, and the database matches the archive."""

import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from conclave.backup import archive_copy, manifest
from conclave.backup.files import names_under, sum_of
from conclave.backup.manifest import BackupError, FileEntry, Manifest
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
