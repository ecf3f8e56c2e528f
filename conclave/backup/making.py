"""Makes a backup of a server at work, or of one that is stopped.

1. Without any lock, the archive's files are copied, or shared with the server or with an earlier backup. Runs go on.
2. With the run lock, what a run has changed in the archive since is made good, and the database is copied. No one
   changes the archive meanwhile, so it is as the copied database knows it. Clients are served; a run waits.
3. Without the lock, the copy is checked, the sums are computed, and the backup gets its name.

If much has to be copied in step 2, because a run was at work during step 1, the lock is let go and step 1 done again.
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
from conclave.backup.archive_check import ArchiveCheck, Former, entry_of
from conclave.backup.archive_copy import ArchiveCopy, Listed, find_state, state_reader
from conclave.backup.destination import Destination, kept_in
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
"""If more than 256 MiB of the archive would have to be copied under the run lock, they are copied before."""

ROUNDS = 3
"""That is done at most 3 times. Then as much is copied under the lock as one run has just written."""


@dataclass(frozen=True)
class Made:
    """A backup that was made.

    ``copied_bytes`` and ``shared_bytes``: of the archive, what took space and what did not.
    """

    path: Path
    manifest: Manifest
    copied_bytes: int
    shared_bytes: int
    locked_seconds: float
    """For how long a cleanup run would have waited."""
    removed: list[str]
    """The names of backups that were removed for it."""
    notes: list[str] = field(default_factory=list)
    """What is damaged elsewhere, in the server's archive or in an earlier backup, and whole in this one; a line each.
    """


class _NoRoomError(BackupError):
    """There is too little room for a backup. Nothing of it is kept."""


def make(config: Config, clock: Clock, folder: Path, keep: int | None, wait: Wait) -> Made:
    """Make a backup in ``folder`` and return it.

    ``keep``: how many are kept there, this one included; None for all. ``wait``: called before a wait for a cleanup
    run. Raises BackupError. If it is killed, what it has copied of the archive is used by the next one.
    """
    try:
        schema.require_current(config.database)
        with destination.opened(config, folder) as place:
            try:
                return _Making(config, clock, place).make(keep, wait)
            except (OSError, sqlite3.Error, _NoRoomError) as error:
                if isinstance(error, _NoRoomError) or _is_full(error, config.database):
                    shutil.rmtree(place.unfinished, ignore_errors=True)
                raise
    except (OSError, sqlite3.Error, StoreError) as error:
        raise BackupError(_one_line(error, config.database, folder)) from error


def _is_full(error: Exception, database: Path) -> bool:
    """Return whether an error is that of a full disk."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(store_error(database, error), StoreFullError)


def _one_line(error: Exception, database: Path, folder: Path) -> str:
    if _is_full(error, database):
        there = folder if folder.is_dir() else folder.parent
        return f"{folder}: the disk is full ({free_text(there)}): nothing was kept of this backup"
    if is_disk_error(error):
        return f"{database}, or its copy in {folder}: {error}"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _newest(folder: Path) -> Former | None:
    newest = None
    for each in kept_in(folder):
        if each.manifest and (newest is None or each.manifest.number > newest.manifest.number):
            newest = Former(each.path, each.manifest)
    return newest


class _Making:
    """One backup, from its beginning to its end."""

    def __init__(self, config: Config, clock: Clock, place: Destination) -> None:
        self._config = config
        self._clock = clock
        self._place = place
        self._here = place.unfinished
        self._newest = _newest(place.folder)
        self._archive = ArchiveCopy(config.archive_path, self._here / manifest.ARCHIVE, self._earlier())
        self._listed: Listed | None = None
        self._locked_seconds = 0.0
        self._notes: list[str] = []

    def make(self, keep: int | None, wait: Wait) -> Made:
        """Make it, and remove the oldest ones."""
        self._begin()
        reach("backup.begun")
        made_at = self._take(wait)
        remove_empty_folders(self._here)
        whole = self._described(made_at)
        sync_tree(self._here)
        reach("backup.checked")
        write(self._here / manifest.NAME, whole.to_json())
        sync(self._here)
        reach("backup.manifest_written")
        path = self._place.complete(made_at)
        reach("backup.completed")
        self._note_made(path, made_at)
        removed = self._place.prune(keep) if keep is not None else []
        sizes = self._archive.copied_bytes, self._archive.shared_bytes
        notes = [note.replace(f"{self._here}/", f"{path}/") for note in self._notes]
        notes += self._place.unread() if keep is not None else []
        return Made(path, whole, *sizes, self._locked_seconds, removed, notes)

    def _note_made(self, path: Path, made_at: int) -> None:
        """Note in the audit log that there is a backup: the server tells its age by that."""
        details = {"folder": str(path), "made_at": made_at}
        with closing(sqlite.connect(self._config.database)) as connection, sqlite.write_transaction(connection):
            actor = operator_identity.current()
            audit.note(connection, self._clock.now(), actor, AuditAction.BACKUP_MADE, details=details)

    def _earlier(self) -> dict[str, Path]:
        """Return the files of the archive in the last backup that were whole then, by their names in it."""
        if not self._newest:
            return {}
        prefix, told = f"{manifest.ARCHIVE}/", self._newest.manifest
        names = [name for name in told.files if name.startswith(prefix) and name not in told.faults]
        return {name.removeprefix(prefix): self._newest.path / name for name in names}

    def _begin(self) -> None:
        """Keep of a backup that did not end what it has copied of the archive's files."""
        self._here.mkdir(mode=0o700, exist_ok=True)
        for name in list(names_under(self._here)):
            first, _, rest = name.partition("/")
            if first != manifest.ARCHIVE or not rest.startswith("lifetime="):
                (self._here / name).unlink()

    def _take(self, wait: Wait) -> int:
        """Copy archive and database, as they are at one moment; return a second that is not after it."""
        with closing(DatabaseLock(self._config.database, locks.CLEANUP)) as lock:
            for round_ in range(1, ROUNDS + 1):
                self._take_archive()
                with lock.hold(wait):
                    began = time.monotonic()
                    if self._is_near(last=round_ == ROUNDS):
                        made_at = self._clock.now()
                        self._take_both()
                        self._locked_seconds = time.monotonic() - began
                        return made_at
        raise AssertionError("the last round is always near")

    def _take_archive(self) -> None:
        """Copy what is missing of the archive, while runs may change it."""
        archive, database = self._config.archive_path, self._config.database
        listed = Listed(ArchiveEntry("", 0, 0), {})
        if find_state(database):
            with suppress(BackupError, sqlite3.Error):  # a run may just be changing it; with the lock, it counts
                listed = archive_copy.list_table(archive, state_reader(database))
        missing = self._archive.missing_bytes(listed) if listed.sizes else 0
        self._require_room(missing + database_copy.size_of(database))
        if listed.sizes:
            self._archive.take_files(listed)
            reach("backup.archive_taken")

    def _is_near(self, *, last: bool) -> bool:
        """Return whether little of the archive is missing, now that it does not change."""
        if last or not (known := find_state(self._config.database)):
            return True
        listed = archive_copy.list_table(self._config.archive_path, lambda: known)
        return self._archive.missing_bytes(listed) <= COPIED_LOCKED_BYTES

    def _take_both(self) -> None:
        if known := find_state(self._config.database):
            self._listed = archive_copy.list_table(self._config.archive_path, lambda: known)
            self._archive.take_files(self._listed)
            self._archive.take_log()
        else:
            shutil.rmtree(self._here / manifest.ARCHIVE, ignore_errors=True)
        reach("backup.caught_up")
        database_copy.copy(self._config.database, self._here / manifest.DATABASE)
        reach("backup.database_taken")

    def _described(self, made_at: int) -> Manifest:
        """Check the copy, and return its manifest."""
        database = self._here / manifest.DATABASE
        entry = self._listed.entry if self._listed else None
        number = self._newest.manifest.number + 1 if self._newest else 1
        found = Manifest(
            __version__, schema.migrations()[-1][0], number, made_at, database_copy.read_rows(database), entry
        )
        archive_copy.require_pair(database, self._here / manifest.ARCHIVE, entry)
        data = [f"{manifest.ARCHIVE}/{name}" for name in sorted(self._listed.sizes)] if self._listed else []
        looked = ArchiveCheck(self._config.archive_path, self._here, self._newest).look(data)
        self._notes = looked.notes
        others = {name: entry_of(self._here / name) for name in names_under(self._here) if name not in looked.entries}
        return replace(found, files=looked.entries | others, faults=looked.faults)

    def _require_room(self, needed: int) -> None:
        if (free := free_bytes(self._place.folder)) < needed + KEPT_FREE_BYTES:
            raise _NoRoomError(
                f"{self._place.folder}: there is no room for a backup: it takes {needed:,} bytes and leaves"
                f" {KEPT_FREE_BYTES:,}, but only {free:,} are free"
            )
