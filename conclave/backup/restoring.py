"""Restores a backup: where nothing is, while no server runs, and so that no client is served what is over.

Everything is made beside the places where it belongs: the database in a folder next to its own place, the archive too.
There it is brought to the present, and what is due is erased. Only then it is moved into place. While that folder is
there, no server starts: a restore that was killed has to be repeated, and begins anew.
"""

import errno
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from conclave.actions.replay import IncompleteError, replay
from conclave.backup import checking, manifest, vault
from conclave.backup.files import KEPT_FREE_BYTES, duplicate, forget, sum_of, sync_tree, write
from conclave.backup.manifest import BackupError, Manifest
from conclave.clock import Clock
from conclave.config.settings import LOCK, Config
from conclave.failpoints import reach
from conclave.keys.inspection import Inspection
from conclave.store import unreadable
from conclave.store.archive import status
from conclave.store.engine import path_check, schema, sqlite
from conclave.store.engine.faults import StoreError, free_bytes
from conclave.store.ledger import book
from conclave.store.resources import audit, state
from conclave.store.resources.audit import AuditAction
from conclave.system import data_folder, locks, operator_identity
from conclave.system.data_folder import DataFolderError
from conclave.system.durable import sync
from conclave.system.locks import LockedError

_PLACING = "placing"
"""A file in the folder of a restore: by what its database and its archive are known once they are in place.

Until all is, what is found there and is one of these was put there by the restore, and is not complete.
"""

_PLACED = "placed"
"""The name that this file has once all is in place, and complete."""

_ARCHIVE = ".archive-path"
"""A file in that folder which tells where the archive is put. The settings may change until a restore is repeated."""

_SIDE_FILES = ("-wal", "-shm", "-journal")

Erase = Callable[[Config], str]
"""Erases what is due from the database of the configuration, and from no archive; returns why it failed, or ""."""


@dataclass
class Restored:
    """What a restore did."""

    manifest: Manifest
    told_until: int = 0
    """Up to when the ledger told of changes, Unix seconds; 0 if there was none."""
    taken_back: Counter[str] = field(default_factory=Counter)
    """How many things of each kind the ledger did not let come back."""
    ledger_flaw: str = ""
    """Why the ledger does not tell of everything since the backup; "" if it does."""
    locked: list[str] = field(default_factory=list)
    """The names of accounts that need a new password."""
    notes: list[str] = field(default_factory=list)
    """What else the operator has to know, a line each."""


def restore(
    config: Config,
    clock: Clock,
    source: Path,
    erase: Erase,
    *,
    accepts_older: bool = False,
    damaged: bool = False,
) -> Restored:
    """Restore the backup in the folder ``source`` to the places of the configuration.

    ``accepts_older``: go on although the newest vault lacks keys, or its ledger does not tell all that has happened
    since. ``damaged``: go on although messages of its archive are damaged. Raises BackupError, and has changed nothing
    then but the vault, which is brought there, or has left nothing that a server would start on.
    """
    with _plainly(config, source):
        told, faults = checking.require_whole(source, damaged=damaged)
        if told.schema > schema.migrations()[-1][0]:
            raise BackupError(f"{source}: was made by Conclave {told.product}, which is newer: use that or a newer one")
        with _alone(config):
            chosen = vault.choose(config, source, accepts_older=accepts_older)
            work = _Restoring(config, clock, source, told, erase, faults, chosen, accepts_older=accepts_older)
            done = work.restore()
    done.notes += [f"{fault.text}: these messages are not served" for fault in faults]
    return done


@contextmanager
def _plainly(config: Config, source: Path) -> Iterator[None]:
    try:
        yield
    except (StoreError, sqlite3.Error, DataFolderError) as error:
        raise BackupError(str(error)) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BackupError(f"{config.database.parent}: the disk is full: nothing was restored") from error
        if error.errno == errno.ENOENT:
            manifest.require_there(source)
        raise BackupError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error


@contextmanager
def _alone(config: Config) -> Iterator[None]:
    """Hold the locks of a server, so that none starts while the block lasts. Raises BackupError if one runs.

    The vault is locked too: what a restored copy tells would be taken for what the server that has been copied tells.
    """
    mark = config.data / data_folder.MARKER
    data_folder.require_own(config.data, config.database, config.archive_path)
    with ExitStack() as held:
        try:
            if not config.database.parent.is_dir():
                raise BackupError(f"{config.database.parent}: there is no such folder; is its disk mounted?")
            config.vault_path.mkdir(mode=0o700, exist_ok=True)
            book.require_writable(config.ledger_path)
            held.enter_context(locks.hold_name(config.database, locks.SERVER))
            if mark.is_file():
                held.enter_context(locks.hold_file(mark))
        except LockedError as error:
            raise BackupError(f"{error}: a server is running, or another restore: stop it first") from None
        try:
            held.enter_context(locks.hold_file(config.vault_path / LOCK))
        except LockedError:
            raise BackupError(
                f"{config.vault_path}: a server uses it: stop that one; or, to try a backup out, set vault.path to a"
                " copy of it"
            ) from None
        yield


def _unplaced(archive: Path) -> Path:
    """Return the folder in which an archive is made that is to be put at the path ``archive``."""
    return archive.with_name(archive.name + path_check.RESTORING)


def _mark(path: Path) -> str:
    """Return by what a file or folder is known wherever it is moved in its file system; "" if there is none.

    Its number alone may be given to another one once it is removed.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return ""
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}"


class _Restoring:
    """One restore, from its beginning to its end."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        source: Path,
        told: Manifest,
        erase: Erase,
        faults: Collection[checking.Fault],
        chosen: Inspection | None,
        *,
        accepts_older: bool,
    ) -> None:
        """``faults``: damage of the backup's archive that is accepted. ``chosen``: the key file, if it needs one."""
        self._keys = chosen
        self._config = config
        self._clock = clock
        self._source = source
        self._erase_due = erase
        self._damaged = {fault.name for fault in faults}
        self._accepts_older = accepts_older
        self._folder = path_check.restoring(config.database)
        self._database = self._folder / config.database.name
        self._archive = _unplaced(config.archive_path)
        self._done = Restored(told)

    def restore(self) -> Restored:
        """Do it."""
        self._require_own_leftovers()
        has_ended = (self._folder / _PLACED).exists()
        self._clear_leftovers()
        if has_ended:
            raise BackupError(f"{self._config.database}: the former restore had put all in place: start the server")
        self._require_nothing_there()
        data_folder.prepare(self._config.data, self._config.database, self._config.archive_path)
        try:
            self._folder.mkdir(mode=0o700)
            sync(self._folder.parent)
            reach("return.begun")
            write(self._folder / _ARCHIVE, f"{self._config.archive_path}\n")
            self._copy()
            if self._keys:
                vault.place(self._keys, self._config)
            reach("return.vault_placed")
            self._settle()
            self._erase()
            self._put_in_place()
        except BaseException:
            # All may be in place already. Then the folder stays, so that a restore that is repeated says so.
            if not (self._folder / _PLACED).exists():
                self._clear_leftovers()  # a process that is killed leaves that to the next restore
            raise
        return self._done

    def _require_own_leftovers(self) -> None:
        """Raise BackupError if the folder of a restore, which is removed, is there and no restore has made it."""
        if self._source.resolve().is_relative_to(self._folder):
            raise BackupError(f"{self._source}: lies where a restore works, which removes it: move it elsewhere first")
        is_made = not self._folder.exists() or (self._folder / _ARCHIVE).exists() or not any(self._folder.iterdir())
        if not is_made:
            raise BackupError(f"{self._folder}: was not made by a restore: move it away first, and keep it")

    def _clear_leftovers(self) -> None:
        """Remove what an earlier restore has left that did not end."""
        if not self._folder.exists():
            return
        archive = self._archive_of_leftovers()
        placed = self._placed_by_leftovers()
        if _mark(self._config.database) in placed:
            for suffix in ("", *_SIDE_FILES):
                self._config.database.with_name(self._config.database.name + suffix).unlink(missing_ok=True)
        if archive and _mark(archive) in placed:
            shutil.rmtree(archive, ignore_errors=True)
        if archive:
            shutil.rmtree(_unplaced(archive), ignore_errors=True)
        shutil.rmtree(self._folder)
        sync(self._folder.parent)

    def _archive_of_leftovers(self) -> Path | None:
        """Return where the earlier restore was to put the archive; None if it was killed before it could note that."""
        try:
            text = (self._folder / _ARCHIVE).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return Path(text.removesuffix("\n")) if text.endswith("\n") else None

    def _placed_by_leftovers(self) -> list[str]:
        """Return by what is known what the earlier restore was to put in place; nothing if it did not come to that."""
        try:
            return (self._folder / _PLACING).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []

    def _require_nothing_there(self) -> None:
        """Raise BackupError if anything is where the backup is to be restored to."""
        database, data, archive = self._config.database, self._config.data, self._config.archive_path
        for suffix in ("", *_SIDE_FILES):
            path = database.with_name(database.name + suffix)
            if os.path.lexists(path):
                raise BackupError(f"{path}: is there already: move the database and its log away first, and keep them")
        if not archive.is_relative_to(data) and not archive.parent.is_dir():
            raise BackupError(f"{archive}: there is no folder {archive.parent}; is its disk mounted?")
        if self._done.manifest.archive and archive.is_mount():
            raise BackupError(
                f"{archive}: is where a disk is mounted, and cannot be moved into place: set archive.path to a folder"
                " on that disk"
            )
        own = {data_folder.MARKER, "reserve", self._config.vault_path.name}
        own |= {database.name + suffix for suffix in (*data_folder.LOCKS, ".reserve")}
        folders = [(data, own), *([] if archive.is_relative_to(data) else [(archive, set())])]
        for folder, allowed in folders:
            of_disk = {"lost+found"} if folder.is_mount() else set()
            for each in folder.iterdir() if folder.is_dir() else ():
                if each.name not in allowed | of_disk and not (each.is_dir() and not any(each.iterdir())):
                    raise BackupError(f"{folder}: is not empty: it holds {each.name}: move it away first, and keep it")

    def _copy(self) -> None:
        files = self._done.manifest.files
        needed = sum(each.bytes for each in files.values()) + KEPT_FREE_BYTES
        if (free := free_bytes(self._folder)) < needed and self._is_one_disk():
            raise BackupError(
                f"{self._folder.parent}: there is no room: {needed:,} bytes are needed, {free:,} are free"
            )
        self._duplicate(manifest.DATABASE, self._database)
        sync(self._folder)
        reach("return.database_copied")
        for name in sorted(files):
            if name != manifest.DATABASE:
                self._duplicate(name, self._archive / name.partition("/")[2])
        if self._archive.exists():
            sync_tree(self._archive)
            sync(self._archive.parent)
        reach("return.archive_copied")

    def _duplicate(self, name: str, target: Path) -> None:
        """Copy a file of the backup. Raises BackupError unless the copy, read from the disk, is what the backup has."""
        duplicate(self._source / name, target)
        sync(target)
        forget(target)
        told = self._done.manifest.files[name].sha256
        if sum_of(target) != (sum_of(self._source / name) if name in self._damaged else told):
            raise BackupError(
                f"{target}: is not as it is in the backup, although it was just copied: nothing was restored; look at"
                " the disk and the memory of this machine"
            )

    def _is_one_disk(self) -> bool:
        return self._config.data.stat().st_dev == self._folder.stat().st_dev

    def _settle(self) -> None:
        """Bring the copied database to this program's schema and to the present."""
        schema.prepare(self._database)
        now = self._clock.now()
        details = {"made_at": self._done.manifest.made_at, "accepts_older_vault": self._accepts_older}
        with closing(sqlite.connect(self._database)) as connection:
            try:
                with sqlite.write_transaction(connection):
                    audit.note(
                        connection, now, operator_identity.current(), AuditAction.BACKUP_RESTORED, details=details
                    )
                    blocks = self._keys.blocks() if self._keys else ()
                    done = replay(
                        connection, self._config.ledger_path, now, blocks, accept_incomplete=self._accepts_older
                    )
            except IncompleteError as error:
                raise BackupError(f"{error}; to restore nevertheless, give --accept-older-vault") from error
            self._done.taken_back, self._done.locked, self._done.told_until = done.counts, done.locked, done.until
            self._done.ledger_flaw = done.flaw
            if self._keys:
                with sqlite.write_transaction(connection):
                    self._done.taken_back["messages_erased"] = unreadable.remove_all(connection, self._keys)
            sqlite.truncate_wal(connection)
        reach("return.settled")

    def _erase(self) -> None:
        """Erase what has expired since from the database, or say why the server has to do that."""
        with closing(sqlite.connect(self._database)) as connection:
            stored = state.stored_policy(connection)
            if stored is None:
                return  # no server has run on it, so nothing can be due
            clock_fault = state.check_clock(connection, self._clock.read())
            due = status.overdue(connection, self._clock.now())
        of_deleted = due.deleted_groups or due.deleted_accounts
        if due.expired_parts or of_deleted or due.restored_messages or due.taken_back_messages:
            self._note("the archive has messages that are due: they are hidden")
        if self._done.ledger_flaw:
            self._note(
                f"{self._done.ledger_flaw}; legal holds that were added since are not in force: add them again before"
                " you start the server; nothing was erased yet"
            )
        elif clock_fault:
            self._note(f"{clock_fault}: nothing was erased; see docs/operations/troubleshooting.md#the-clock-guard")
        elif stored != self._config.policy:
            self._note(
                f"{', '.join(stored.differing(self._config.policy))}: the configuration differs from the one of the"
                " backup: it takes effect when the server starts, and nothing was erased by it yet"
            )
        elif error := self._erase_due(self._beside()):
            raise BackupError(f"what is due could not be erased: {error}")
        with closing(sqlite.connect(self._database)) as connection:
            sqlite.truncate_wal(connection)
        reach("return.erased")

    def _note(self, what: str) -> None:
        self._done.notes.append(f"{what}; the first run of the server erases what is due")

    def _beside(self) -> Config:
        """Return the configuration of a server whose files are those that are being made here."""
        config = self._config
        return replace(
            config,
            database_path=str(self._database),
            data_path=str(self._folder / "data"),
            archive=replace(config.archive, path=str(self._archive)),
            vault=replace(config.vault, path=str(config.vault_path)),
            cleanup=replace(config.cleanup, engine="sql", disk_reserve=0),
        )

    def _put_in_place(self) -> None:
        """Move all into place. If this is killed, the next restore removes it and begins anew."""
        for suffix in _SIDE_FILES:
            if os.path.lexists(path := self._database.with_name(self._database.name + suffix)):
                raise BackupError(f"{path}: is left, so the restored database is not complete")
        sync(self._database)
        write(self._folder / _PLACING, "\n".join(filter(None, map(_mark, (self._database, self._archive)))))
        sync(self._folder)
        reach("return.placing")
        if self._archive.exists():
            if self._config.archive_path.is_dir():
                self._config.archive_path.rmdir()  # an empty one
            self._archive.rename(self._config.archive_path)
            sync(self._config.archive_path.parent)
        reach("return.archive_placed")
        self._database.rename(self._config.database)
        sync(self._config.database.parent)
        reach("return.database_placed")
        (self._folder / _PLACING).rename(self._folder / _PLACED)  # from now on what is in place is not removed
        sync(self._folder)
        reach("return.placed")
        shutil.rmtree(self._folder)
        sync(self._config.database.parent)
