"""Makes a backup of a running or stopped server.

1. Without a lock: copies the archive's files, or shares them with the server or an earlier backup. Runs continue.
2. With the run lock: copies the archive files that a run has changed since, and the database. The archive cannot change
   during this step, so both match. Clients are served; runs wait.
3. Without the lock: checks the copy, computes checksums, and renames the backup.

If step 2 would have to copy many bytes, because a run was active during step 1, it releases the lock and repeats
step 1.
"""

import errno
import shutil
import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from conclave import __version__
from conclave.backup import archive_copy, database_copy, destination, manifest
from conclave.backup.archive_copy import ArchiveCopy, TableListing, find_state, state_reader
from conclave.backup.checking import ArchiveCheck, FormerBackup, entry_of
from conclave.backup.destination import Destination, backups_in
from conclave.backup.files import KEPT_FREE_BYTES, names_under, remove_empty_folders, sync_tree, write
from conclave.backup.manifest import ArchiveEntry, BackupError, Manifest
from conclave.clock import Clock
from conclave.config.settings import Config
from conclave.failpoints import reach
from conclave.store.engine import schema, sqlite
from conclave.store.engine.faults import StoreError, StoreFullError, free_bytes, free_text, is_disk_error, store_error
from conclave.store.resources import audit
from conclave.store.resources.audit import AuditAction
from conclave.system import locks, operator_identity
from conclave.system.durable import sync
from conclave.system.locks import DatabaseLock, Wait

COPIED_LOCKED_BYTES = 256 * 1024 * 1024
"""The maximum bytes of the archive to copy under the run lock, except in the last round."""

ROUNDS = 3
"""The maximum number of times that step 1 is done. After that, all missing files are copied under the lock."""


@dataclass(frozen=True)
class BackupResult:
    """A complete backup. ``copied_bytes`` and ``shared_bytes``: bytes of the archive that were copied, or shared."""

    path: Path
    manifest: Manifest
    copied_bytes: int
    shared_bytes: int
    locked_seconds: float
    """How long the run lock was held."""
    removed: list[str]
    """The names of old backups that were removed."""
    notes: list[str] = field(default_factory=list)
    """One line for each file that is damaged in the server's archive or an earlier backup, but not in this one."""


class _NoRoomError(BackupError):
    """There is not enough space for a backup. No part of it is kept."""


def make(config: Config, clock: Clock, folder: Path, keep: int | None, wait: Wait) -> BackupResult:
    """Make a backup in ``folder`` and return it.

    ``keep``: how many backups to keep, including this one; None: all. ``wait``: called before waiting for a cleanup
    run. Raises BackupError. If the process is killed, the next backup reuses the copied files of the archive.
    """
    try:
        schema.require_current(config.database)
        with destination.open_destination(config, folder) as backups:
            try:
                return _BackupJob(config, clock, backups).make(keep, wait)
            except (OSError, sqlite3.Error, _NoRoomError) as error:
                if isinstance(error, _NoRoomError) or _is_full(error, config.database):
                    shutil.rmtree(backups.unfinished, ignore_errors=True)
                raise
    except (OSError, sqlite3.Error, StoreError) as error:
        raise BackupError(_one_line(error, config.database, folder)) from error


def _is_full(error: Exception, database: Path) -> bool:
    """Return whether an error means that the disk is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(store_error(database, error), StoreFullError)


def _one_line(error: Exception, database: Path, folder: Path) -> str:
    if _is_full(error, database):
        existing_folder = folder if folder.is_dir() else folder.parent
        return f"{folder}: the disk is full ({free_text(existing_folder)}): nothing was kept of this backup"
    if is_disk_error(error):
        return f"{database}, or its copy in {folder}: {error}"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _newest(folder: Path) -> FormerBackup | None:
    newest = None
    for each in backups_in(folder):
        if each.manifest and (newest is None or each.manifest.number > newest.manifest.number):
            newest = FormerBackup(each.path, each.manifest)
    return newest


class _BackupJob:
    """Makes one backup."""

    def __init__(self, config: Config, clock: Clock, place: Destination) -> None:
        self._config = config
        self._clock = clock
        self._place = place
        self._here = place.unfinished
        self._newest = _newest(place.folder)
        self._archive = ArchiveCopy(config.archive_path, self._here / manifest.ARCHIVE, self._files_of_last_backup())
        self._listing: TableListing | None = None
        self._locked_seconds = 0.0
        self._notes: list[str] = []

    def make(self, keep: int | None, wait: Wait) -> BackupResult:
        """Make the backup, and remove old ones."""
        self._prepare_folder()
        reach("backup.begun")
        made_at = self._copy(wait)
        remove_empty_folders(self._here)
        contents = self._check(made_at)
        sync_tree(self._here)
        reach("backup.checked")
        write(self._here / manifest.NAME, contents.to_json())
        sync(self._here)
        reach("backup.manifest_written")
        path = self._place.complete(made_at)
        reach("backup.completed")
        self._log_backup(path, made_at)
        removed = self._place.prune(keep) if keep is not None else []
        sizes = self._archive.copied_bytes, self._archive.shared_bytes
        notes = [note.replace(f"{self._here}/", f"{path}/") for note in self._notes]
        notes += self._place.unread() if keep is not None else []
        return BackupResult(path, contents, *sizes, self._locked_seconds, removed, notes)

    def _log_backup(self, path: Path, made_at: int) -> None:
        """Record the backup in the audit log, from which the server derives the age of the last backup."""
        details = {"folder": str(path), "made_at": made_at}
        with closing(sqlite.connect(self._config.database)) as connection, sqlite.write_transaction(connection):
            actor = operator_identity.current()
            audit.note(connection, self._clock.now(), actor, AuditAction.BACKUP_MADE, details=details)

    def _files_of_last_backup(self) -> dict[str, Path]:
        """Return the undamaged files of the archive in the last backup, by their names in the archive."""
        if not self._newest:
            return {}
        prefix, former = f"{manifest.ARCHIVE}/", self._newest.manifest
        names = [name for name in former.files if name.startswith(prefix) and name not in former.faults]
        return {name.removeprefix(prefix): self._newest.path / name for name in names}

    def _prepare_folder(self) -> None:
        """Create the folder, or clear an interrupted backup's folder except the archive's data files."""
        self._here.mkdir(mode=0o700, exist_ok=True)
        for name in list(names_under(self._here)):
            first, _, rest = name.partition("/")
            if first != manifest.ARCHIVE or not rest.startswith("lifetime="):
                (self._here / name).unlink()

    def _copy(self, wait: Wait) -> int:
        """Copy archive and database in the state of the same moment. Return a Unix second not later than that."""
        with closing(DatabaseLock(self._config.database, locks.CLEANUP)) as lock:
            for round_ in range(1, ROUNDS + 1):
                self._copy_archive()
                with lock.hold(wait):
                    start = time.monotonic()
                    if self._is_nearly_complete(last=round_ == ROUNDS):
                        made_at = self._clock.now()
                        self._copy_both()
                        self._locked_seconds = time.monotonic() - start
                        return made_at
        raise AssertionError("the last round always completes")

    def _copy_archive(self) -> None:
        """Copy missing files of the archive. Runs may change it at the same time."""
        archive, database = self._config.archive_path, self._config.database
        listing = TableListing(ArchiveEntry("", 0, 0), {})
        if find_state(database):
            with suppress(BackupError, sqlite3.Error):  # a run may be changing it; with the lock it is an error
                listing = archive_copy.list_table(archive, state_reader(database))
        missing = self._archive.missing_bytes(listing) if listing.sizes else 0
        self._require_room(missing + database_copy.size_of(database))
        if listing.sizes:
            self._archive.copy_files(listing)
            reach("backup.archive_taken")

    def _is_nearly_complete(self, *, last: bool) -> bool:
        """Return whether at most COPIED_LOCKED_BYTES of the archive are missing. The caller must hold the run lock."""
        if last or not (state := find_state(self._config.database)):
            return True
        listing = archive_copy.list_table(self._config.archive_path, lambda: state)
        return self._archive.missing_bytes(listing) <= COPIED_LOCKED_BYTES

    def _copy_both(self) -> None:
        if state := find_state(self._config.database):
            self._listing = archive_copy.list_table(self._config.archive_path, lambda: state)
            self._archive.copy_files(self._listing)
            self._archive.copy_log()
        else:
            shutil.rmtree(self._here / manifest.ARCHIVE, ignore_errors=True)
        reach("backup.caught_up")
        database_copy.copy(self._config.database, self._here / manifest.DATABASE)
        reach("backup.database_taken")

    def _check(self, made_at: int) -> Manifest:
        """Check the copy, and return its manifest."""
        database = self._here / manifest.DATABASE
        entry = self._listing.entry if self._listing else None
        number = self._newest.manifest.number + 1 if self._newest else 1
        contents = Manifest(
            __version__, schema.migrations()[-1][0], number, made_at, database_copy.read_rows(database), entry
        )
        archive_copy.require_pair(database, self._here / manifest.ARCHIVE, entry)
        data_files = [f"{manifest.ARCHIVE}/{name}" for name in sorted(self._listing.sizes)] if self._listing else []
        check_result = ArchiveCheck(self._config.archive_path, self._here, self._newest).run(data_files)
        self._notes = check_result.notes
        others = {
            name: entry_of(self._here / name) for name in names_under(self._here) if name not in check_result.entries
        }
        return replace(contents, files=check_result.entries | others, faults=check_result.faults)

    def _require_room(self, needed: int) -> None:
        if (free := free_bytes(self._place.folder)) < needed + KEPT_FREE_BYTES:
            raise _NoRoomError(
                f"{self._place.folder}: not enough space for a backup: it takes {needed:,} bytes and leaves"
                f" {KEPT_FREE_BYTES:,}, but only {free:,} are free"
            )
