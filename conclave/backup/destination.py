"""Manages the folder of backups: checks and locks it, lists backups, and removes old ones."""

import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from conclave.backup import manifest
from conclave.backup.files import write
from conclave.backup.manifest import BackupError, Manifest
from conclave.config.settings import Config
from conclave.failpoints import reach
from conclave.store.engine import path_check
from conclave.store.engine.faults import is_gone
from conclave.system import locks, operator_identity
from conclave.system.durable import sync
from conclave.system.locks import LockedError

MARK = ".conclave-backups"
"""The file that marks a folder for backups. Making a backup locks this file."""

_TEXT = "Backups of one Conclave server are kept here; `conclave backup list` lists them. Database:\n"

UNFINISHED = ".unfinished"
"""The name of an incomplete backup. The next backup continues it."""

_REMOVED = ".removed"
"""The name of a backup that is being removed."""

_NAME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}Z")


@dataclass(frozen=True)
class KeptBackup:
    """A backup: its folder, and its manifest. ``fault``: why the manifest cannot be read."""

    path: Path
    manifest: Manifest | None
    fault: str = ""


class Destination:
    """A folder for backups that this process has locked."""

    def __init__(self, folder: Path) -> None:
        """``folder``: an existing folder with the file MARK."""
        self.folder = folder
        self.unfinished = folder / UNFINISHED

    def complete(self, now: int) -> Path:
        """Rename the unfinished backup to the time ``now``, Unix seconds, and return its path. Raises OSError.

        If the name is taken, a later time is used.
        """
        while (path := self.folder / f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H-%M-%SZ}").exists():
            now += 1
        self.unfinished.rename(path)
        sync(self.folder)
        return path

    def prune(self, keep: int) -> list[str]:
        """Remove the oldest backups until ``keep`` undamaged ones are left; return their names. Raises OSError.

        Backups that were damaged when they were made do not count. They are removed with older undamaged ones, and if
        there are ``keep`` newer damaged ones. So damaged backups never displace an undamaged one,
        and do not fill the disk.

        Backups with an unreadable manifest, and symbolic links, do not count and are never removed: see ``unread``.
        """
        backups: dict[bool, list[tuple[int, Path]]] = {False: [], True: []}
        for each in backups_in(self.folder):
            if each.manifest is not None and not each.path.is_symlink():
                backups[bool(each.manifest.faults)].append((each.manifest.number, each.path))
        whole, damaged = sorted(backups[False]), sorted(backups[True])
        oldest = whole[-keep][0] if len(whole) >= keep else 0
        to_keep = {*whole[-keep:], *(each for each in damaged[-keep:] if each[0] > oldest)}
        removed_names = []
        for _, path in sorted({*whole, *damaged} - to_keep):
            path.rename(self.folder / _REMOVED)
            reach("backup.renamed_away")
            self.remove_leftovers()
            removed_names.append(path.name)
        return removed_names

    def unread(self) -> list[str]:
        """Return one line for each backup that is never removed because its manifest cannot be read."""
        return [f"{each.fault}: it is neither counted nor removed" for each in backups_in(self.folder) if each.fault]

    def remove_leftovers(self) -> None:
        """Finish an interrupted removal, and remove symbolic links. Raises OSError."""
        for path in (self.folder / _REMOVED, self.unfinished):
            if path.is_symlink():
                path.unlink()
        if (removed := self.folder / _REMOVED).exists():
            shutil.rmtree(removed)
            sync(self.folder)


@contextmanager
def open_destination(config: Config, folder: Path) -> Iterator[Destination]:
    """Context manager that creates the folder for backups if necessary, and locks it.

    Sets its mode to 0700. Raises BackupError if the folder is unsuitable, or if another backup is being made there.
    """
    folder = Path(os.path.realpath(folder))
    if os.fsencode(folder).decode(errors="replace") != str(folder):
        raise BackupError(f"{folder}: the name is not UTF-8, as SQLite requires: choose another folder")
    _require_outside(config, folder)
    try:
        _require_own(config, folder)
        folder.mkdir(mode=0o700, exist_ok=True)
        _close(folder)
        if not (folder / MARK).exists():
            write(folder / MARK, f"{_TEXT}{config.database}\n")
        with locks.hold_file(folder / MARK):
            destination = Destination(folder)
            destination.remove_leftovers()
            yield destination
    except LockedError:
        raise BackupError(f"{folder}: another backup is being made there: wait until it has ended") from None


def _require_outside(config: Config, folder: Path) -> None:
    """Raise BackupError if ``folder`` is in a folder of the server."""
    for own in (config.data, config.archive_path):
        if folder.is_relative_to(own):
            raise BackupError(
                f"{folder}: is in {own}, where no backup may be: choose another folder, preferably on another disk"
            )
    if folder.is_relative_to(path_check.restoring(config.database)):
        raise BackupError(f"{folder}: is the working folder of a restore, which removes it: choose another folder")


def _require_own(config: Config, folder: Path) -> None:
    try:
        status = folder.stat()
    except FileNotFoundError:
        if not folder.parent.is_dir():
            raise BackupError(f"{folder}: there is no folder {folder.parent}; is its disk mounted?") from None
        return
    if not stat.S_ISDIR(status.st_mode):
        raise BackupError(f"{folder}: is a file, not a folder")
    owner = operator_identity.owner_not_root(folder)
    if owner and owner == operator_identity.owner_not_root(config.database):
        raise BackupError(
            f"{folder}: belongs to {owner}, who could neither read nor remove a backup made by root: run this as that"
            f" user, with sudo -u '{owner}'"
        )
    mark = folder / MARK
    if foreign := _foreign(folder):
        raise BackupError(f"{folder}: contains {foreign}, which is not a backup: choose a separate folder")
    if not mark.is_file():
        if status.st_mode & (stat.S_ISVTX | stat.S_IWOTH):
            raise BackupError(f"{folder}: is writable for everyone: choose a separate folder")
        return
    recorded_database = mark.read_text(encoding="utf-8", errors="surrogateescape").removeprefix(_TEXT).strip()
    if recorded_database and recorded_database != str(config.database):
        raise BackupError(
            f"{folder}: contains backups of another database, {recorded_database}: choose a separate folder"
        )


def _foreign(folder: Path) -> str | None:
    """Return a name in a folder without MARK; None if the folder is empty or has MARK. Raises OSError."""
    if (folder / MARK).is_file():
        return None
    name = next((each.name for each in folder.iterdir() if each.name != "lost+found"), None)
    return None if (folder / MARK).is_file() else name  # another process may have created it in between


def _close(folder: Path) -> None:
    """Restrict the folder to this user. Raises BackupError if it belongs to another user."""
    try:
        folder.chmod(0o700)
    except PermissionError:
        raise BackupError(
            f"{folder}: belongs to another user: chown it to the user who makes the backups, or choose another folder"
        ) from None


def backups_in(folder: Path) -> Iterator[KeptBackup]:
    """Yield the backups in a folder, ordered by name. Manifests may be large.

    Raises BackupError if the folder is not empty and has no MARK.
    """
    try:
        if foreign := _foreign(folder):
            raise BackupError(f"{folder}: is not a folder for backups: it contains {foreign}")
        paths = sorted(each for each in folder.iterdir() if _NAME.fullmatch(each.name))
    except OSError as error:
        raise BackupError(f"{folder}: {error.strerror}") from error
    for path in paths:
        try:
            yield KeptBackup(path, manifest.read(path))
        except BackupError as error:
            if not is_gone(path):  # unless it was removed in between
                yield KeptBackup(path, None, str(error))
