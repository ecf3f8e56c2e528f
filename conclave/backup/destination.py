"""The folder in which backups are kept: whose it is, what is in it, and what goes when there are too many."""

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
"""The name of a file that makes a folder one for backups. Making a backup there locks this file."""

_TEXT = "Backups of one Conclave server are kept here; `conclave backup list` lists them. Database:\n"

UNFINISHED = ".unfinished"
"""The name of a backup that is not complete. The next one goes on with it."""

_REMOVED = ".removed"
"""The name of a backup that is being removed."""

_NAME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}Z")


@dataclass(frozen=True)
class Kept:
    """A backup that is kept: its folder, and its manifest, or why that cannot be read."""

    path: Path
    manifest: Manifest | None
    fault: str = ""


class Destination:
    """A folder for backups, of which this process holds the lock."""

    def __init__(self, folder: Path) -> None:
        """``folder``: exists, and has its mark."""
        self.folder = folder
        self.unfinished = folder / UNFINISHED

    def complete(self, now: int) -> Path:
        """Give the unfinished backup its name, which says when it was made, and return its path. Raises OSError.

        ``now``: Unix seconds. If that name is taken, a later one is used.
        """
        while (path := self.folder / f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H-%M-%SZ}").exists():
            now += 1
        self.unfinished.rename(path)
        sync(self.folder)
        return path

    def prune(self, keep: int) -> list[str]:
        """Remove the oldest complete backups until ``keep`` whole ones are left; return their names. Raises OSError.

        One whose archive was damaged when it was made does not count. It goes with the whole ones that were made before
        it, and if ``keep`` damaged ones are newer: so none removes a whole one, and they do not fill the disk.

        One whose manifest cannot be read stays, and does not count: the operator has to look at it, see ``unread``. So
        does one that is a link, since it lies elsewhere.
        """
        kinds: dict[bool, list[tuple[int, Path]]] = {False: [], True: []}
        for each in kept_in(self.folder):
            if each.manifest is not None and not each.path.is_symlink():
                kinds[bool(each.manifest.faults)].append((each.manifest.number, each.path))
        whole, damaged = sorted(kinds[False]), sorted(kinds[True])
        oldest = whole[-keep][0] if len(whole) >= keep else 0
        kept = {*whole[-keep:], *(each for each in damaged[-keep:] if each[0] > oldest)}
        gone = []
        for _, path in sorted({*whole, *damaged} - kept):
            path.rename(self.folder / _REMOVED)
            reach("backup.renamed_away")
            self.remove_leftovers()
            gone.append(path.name)
        return gone

    def unread(self) -> list[str]:
        """Return in a line each which backups are never removed, since their manifests cannot be read."""
        return [f"{each.fault}: it is neither counted nor removed" for each in kept_in(self.folder) if each.fault]

    def remove_leftovers(self) -> None:
        """Finish a removal that did not end, and remove what is only a link. Raises OSError."""
        for path in (self.folder / _REMOVED, self.unfinished):
            if path.is_symlink():
                path.unlink()
        if (removed := self.folder / _REMOVED).exists():
            shutil.rmtree(removed)
            sync(self.folder)


@contextmanager
def opened(config: Config, folder: Path) -> Iterator[Destination]:
    """Make the folder for backups of a server, or take one that is there, and hold its lock while the block lasts.

    Its mode is 0700 then. Raises BackupError if it cannot be that, or if another backup is being made there.
    """
    folder = Path(os.path.realpath(folder))
    _require_outside(config, folder)
    try:
        _require_own(config, folder)
        folder.mkdir(mode=0o700, exist_ok=True)
        _close(folder)
        if not (folder / MARK).exists():
            write(folder / MARK, f"{_TEXT}{config.database}\n")
        with locks.hold_file(folder / MARK):
            here = Destination(folder)
            here.remove_leftovers()
            yield here
    except LockedError:
        raise BackupError(f"{folder}: another backup is being made there: wait until it has ended") from None


def _require_outside(config: Config, folder: Path) -> None:
    """Raise BackupError if a backup in ``folder`` would lie where no file may hold what was erased."""
    for own in (config.data, config.archive_path):
        if folder.is_relative_to(own):
            raise BackupError(
                f"{folder}: lies in {own}, where nothing may be that was erased: name a folder elsewhere, best on"
                " another disk"
            )
    if folder.is_relative_to(path_check.restoring(config.database)):
        raise BackupError(f"{folder}: is where a restore works, which removes it: name a folder elsewhere")


def _require_own(config: Config, folder: Path) -> None:
    try:
        found = folder.stat()
    except FileNotFoundError:
        if not folder.parent.is_dir():
            raise BackupError(f"{folder}: there is no folder {folder.parent}; is its disk mounted?") from None
        return
    if not stat.S_ISDIR(found.st_mode):
        raise BackupError(f"{folder}: is a file, not a folder")
    owner = operator_identity.owner_not_root(folder)
    if owner and owner == operator_identity.owner_not_root(config.database):
        raise BackupError(
            f"{folder}: belongs to {owner}, who could neither read nor remove a backup that root makes there: run this"
            f" as that user, as by sudo -u '{owner}'"
        )
    mark = folder / MARK
    if foreign := _foreign(folder):
        raise BackupError(f"{folder}: holds {foreign}, which is no backup: name a folder of its own")
    if not mark.is_file():
        if found.st_mode & (stat.S_ISVTX | stat.S_IWOTH):
            raise BackupError(f"{folder}: everybody can write there: name a folder of its own")
        return
    known = mark.read_text(encoding="utf-8").removeprefix(_TEXT).strip()
    if known and known != str(config.database):
        raise BackupError(f"{folder}: holds backups of another database, {known}: name a folder of its own")


def _foreign(folder: Path) -> str | None:
    """Return the name of something in a folder without a mark, None if it is empty, or has one. Raises OSError."""
    if (folder / MARK).is_file():
        return None
    found = next((each.name for each in folder.iterdir() if each.name != "lost+found"), None)
    return None if (folder / MARK).is_file() else found  # another process may have made it meanwhile


def _close(folder: Path) -> None:
    """Let no other user into the folder. Raises BackupError where that is not this user's to do."""
    try:
        folder.chmod(0o700)
    except PermissionError:
        raise BackupError(
            f"{folder}: belongs to another user: give it to the one who makes the backups (chown), or name another"
        ) from None


def kept_in(folder: Path) -> Iterator[Kept]:
    """Yield the backups in a folder, by name; a manifest may be large.

    An empty folder may become one for backups, and has none. Raises BackupError if another one has no mark.
    """
    try:
        if foreign := _foreign(folder):
            raise BackupError(f"{folder}: is no folder for backups, and holds {foreign}")
        paths = sorted(each for each in folder.iterdir() if _NAME.fullmatch(each.name))
    except OSError as error:
        raise BackupError(f"{folder}: {error.strerror}") from error
    for path in paths:
        try:
            yield Kept(path, manifest.read(path))
        except BackupError as error:
            if not is_gone(path):  # or the one who makes backups has removed it meanwhile
                yield Kept(path, None, str(error))
