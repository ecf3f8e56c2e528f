"""Restores a backup to empty paths while no server runs, without bringing back messages that were deleted since.

The database and the archive are copied to working folders beside their paths. There the ledger is replayed, and due
messages are erased. Then they are moved into place. No server starts while the working folder exists: a restore that
was killed has to be repeated from the start.
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
from conclave.backup.files import KEPT_FREE_BYTES, drop_cache, duplicate, sum_of, sync_tree, write
from conclave.backup.manifest import BackupError, Manifest
from conclave.clock import Clock
from conclave.config.settings import LOCK, Config
from conclave.failpoints import reach
from conclave.keys.inspection import Inspection
from conclave.store import keyring, unreadable
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
"""A file in the working folder with the identities of the new database and archive, see ``_identity``.

If the restore is interrupted, files in place with these identities belong to it, and are removed.
"""

_PLACED = "placed"
"""The new name of this file once everything is in place."""

_ARCHIVE = ".archive-path"
"""A file in the working folder with the path of the archive, since settings may change before a restore is repeated."""

_SIDE_FILES = ("-wal", "-shm", "-journal")

Erase = Callable[[Config], str]
"""Erases due messages from the database of the configuration, but not from its archive; returns an error or ""."""


@dataclass
class RestoreResult:
    """The result of a restore."""

    manifest: Manifest
    ledger_until: int = 0
    """The Unix second until which the ledger has changes; 0 without a ledger."""
    replayed: Counter[str] = field(default_factory=Counter)
    """How many changes of each kind were replayed from the ledger."""
    ledger_flaw: str = ""
    """Why the ledger is incomplete since the backup; "": it is complete."""
    locked: list[str] = field(default_factory=list)
    """The names of accounts that need a new password."""
    notes: list[str] = field(default_factory=list)
    """Further lines for the operator."""


def restore(
    config: Config,
    clock: Clock,
    source: Path,
    erase: Erase,
    *,
    accepts_older: bool = False,
    damaged: bool = False,
) -> RestoreResult:
    """Restore the backup in the folder ``source`` to the paths of the configuration.

    ``accepts_older``: proceed if the newest vault lacks keys, or its ledger is incomplete. ``damaged``: proceed if
    messages of the archive are damaged. Raises BackupError; then nothing was changed except the vault, or no server
    can start until the restore has been repeated.
    """
    with _backup_errors(config, source):
        contents, faults = checking.require_whole(source, damaged=damaged)
        if contents.schema > schema.migrations()[-1][0]:
            raise BackupError(f"{source}: was made by the newer version {contents.product}: use that or a later one")
        with _locked(config):
            chosen = vault.choose(config, source, accepts_older=accepts_older)
            job = _RestoreJob(config, clock, source, contents, erase, faults, chosen, accepts_older=accepts_older)
            result = job.restore()
    result.notes += [f"{fault.text}: these messages are not served" for fault in faults]
    return result


@contextmanager
def _backup_errors(config: Config, source: Path) -> Iterator[None]:
    try:
        yield
    except (StoreError, sqlite3.Error, DataFolderError) as error:
        raise BackupError(str(error)) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BackupError(f"{config.database.parent}: the disk is full: nothing was restored") from error
        if error.errno == errno.ENOENT:
            manifest.require_present(source)
        raise BackupError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error


@contextmanager
def _locked(config: Config) -> Iterator[None]:
    """Context manager that holds a server's locks, so that no server starts. Raises BackupError if one runs.

    Locks the vault too: the ledger must not mix entries of the restored copy with those of a running server.
    """
    mark = config.data / data_folder.MARKER
    data_folder.require_own(config.data, config.database, config.archive_path)
    with ExitStack() as stack:
        try:
            if not config.database.parent.is_dir():
                raise BackupError(f"{config.database.parent}: the folder does not exist; is its disk mounted?")
            keyring.require_place(config.vault_path)
            config.vault_path.mkdir(mode=0o700, exist_ok=True)
            book.require_writable(config.ledger_path)
            stack.enter_context(locks.hold_name(config.database, locks.SERVER))
            if mark.is_file():
                stack.enter_context(locks.hold_file(mark))
        except LockedError as error:
            raise BackupError(f"{error}: a server is running, or another restore: stop it first") from None
        try:
            stack.enter_context(locks.hold_file(config.vault_path / LOCK))
        except LockedError:
            raise BackupError(
                f"{config.vault_path}: is used by a server: stop that server; or, to test a backup, set vault.path to a"
                " copy of the vault"
            ) from None
        yield


def _staging(archive: Path) -> Path:
    """Return the working folder for an archive with the path ``archive``."""
    return archive.with_name(archive.name + path_check.RESTORING)


def _identity(path: Path) -> str:
    """Return an identity of a file or folder that a rename preserves; "" if it does not exist.

    The inode number alone may be reused.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return ""
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"


class _RestoreJob:
    """Restores one backup."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        source: Path,
        contents: Manifest,
        erase: Erase,
        faults: Collection[checking.BackupFault],
        chosen: Inspection | None,
        *,
        accepts_older: bool,
    ) -> None:
        """``faults``: accepted damage of the backup's archive. ``chosen``: the key file; None: not needed."""
        self._keys = chosen
        self._config = config
        self._clock = clock
        self._source = source
        self._erase_due = erase
        self._damaged = {fault.name for fault in faults}
        self._accepts_older = accepts_older
        self._folder = path_check.restoring(config.database)
        self._database = self._folder / config.database.name
        self._archive = _staging(config.archive_path)
        self._result = RestoreResult(contents)

    def restore(self) -> RestoreResult:
        """Restore the backup."""
        self._require_own_leftovers()
        has_ended = (self._folder / _PLACED).exists()
        self._clear_leftovers()
        if has_ended:
            raise BackupError(f"{self._config.database}: the former restore has completed: start the server")
        self._require_empty_places()
        data_folder.prepare(self._config.data, self._config.database, self._config.archive_path)
        try:
            self._folder.mkdir(mode=0o700)
            sync(self._folder.parent)
            reach("return.begun")
            write(self._folder / _ARCHIVE, f"{self._config.archive_path}\n")
            self._copy()
            if self._keys:
                vault.install(self._keys, self._config)
            reach("return.vault_placed")
            self._settle()
            self._erase()
            self._put_in_place()
        except BaseException:
            # If everything is in place, keep the folder, so that a repeated restore reports it.
            if not (self._folder / _PLACED).exists():
                self._clear_leftovers()  # after a kill, the next restore does this
            raise
        return self._result

    def _require_own_leftovers(self) -> None:
        """Raise BackupError if the working folder, which will be removed, was not created by a restore."""
        if self._source.resolve().is_relative_to(self._folder):
            raise BackupError(f"{self._source}: is in the working folder of a restore: move it elsewhere first")
        is_own = not self._folder.exists() or (self._folder / _ARCHIVE).exists() or not any(self._folder.iterdir())
        if not is_own:
            raise BackupError(f"{self._folder}: was not made by a restore: move it away first, and keep it")

    def _clear_leftovers(self) -> None:
        """Remove the leftovers of an interrupted restore."""
        if not self._folder.exists():
            return
        archive = self._archive_of_leftovers()
        placed = self._placed_by_leftovers()
        if _identity(self._config.database) in placed:
            for suffix in ("", *_SIDE_FILES):
                self._config.database.with_name(self._config.database.name + suffix).unlink(missing_ok=True)
        if archive and _identity(archive) in placed:
            shutil.rmtree(archive, ignore_errors=True)
        if archive:
            shutil.rmtree(_staging(archive), ignore_errors=True)
        shutil.rmtree(self._folder)
        sync(self._folder.parent)

    def _archive_of_leftovers(self) -> Path | None:
        """Return the archive's path in the interrupted restore; None if it was killed before it stored the path."""
        try:
            text = (self._folder / _ARCHIVE).read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            return None
        return Path(text.removesuffix("\n")) if text.endswith("\n") else None

    def _placed_by_leftovers(self) -> list[str]:
        """Return the identities of the files that the interrupted restore was moving into place, if any."""
        try:
            return (self._folder / _PLACING).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []

    def _require_empty_places(self) -> None:
        """Raise BackupError if anything exists at the paths to restore to."""
        database, data, archive = self._config.database, self._config.data, self._config.archive_path
        for suffix in ("", *_SIDE_FILES):
            path = database.with_name(database.name + suffix)
            if os.path.lexists(path):
                raise BackupError(f"{path}: exists: move the database and its log away first, and keep them")
        if not archive.is_relative_to(data) and not archive.parent.is_dir():
            raise BackupError(f"{archive}: there is no folder {archive.parent}; is its disk mounted?")
        if self._result.manifest.archive and archive.is_mount():
            raise BackupError(f"{archive}: is a mount point, which a restore cannot replace: use a folder on that disk")
        own_names = {data_folder.MARKER, "reserve", self._config.vault_path.name}
        own_names |= {database.name + suffix for suffix in (*data_folder.LOCKS, ".reserve")}
        folders = [(data, own_names), *([] if archive.is_relative_to(data) else [(archive, set())])]
        for folder, allowed_names in folders:
            disk_names = {"lost+found"} if folder.is_mount() else set()
            for each in folder.iterdir() if folder.is_dir() else ():
                if each.name not in allowed_names | disk_names and not (each.is_dir() and not any(each.iterdir())):
                    raise BackupError(
                        f"{folder}: is not empty: it contains {each.name}: move it away first, and keep it"
                    )

    def _copy(self) -> None:
        files = self._result.manifest.files
        needed = sum(each.bytes for each in files.values()) + KEPT_FREE_BYTES
        if (free := free_bytes(self._folder)) < needed and self._is_one_disk():
            raise BackupError(
                f"{self._folder.parent}: not enough space: {needed:,} bytes are needed, {free:,} are free"
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
        """Copy a file of the backup, and verify the copy on disk. Raises BackupError."""
        duplicate(self._source / name, target)
        sync(target)
        drop_cache(target)
        expected = self._result.manifest.files[name].sha256
        if sum_of(target) != (sum_of(self._source / name) if name in self._damaged else expected):
            raise BackupError(
                f"{target}: differs from the backup although it was just copied: nothing was restored; check the disk"
                " and the memory of this machine"
            )

    def _is_one_disk(self) -> bool:
        return self._config.data.stat().st_dev == self._folder.stat().st_dev

    def _settle(self) -> None:
        """Migrate the copied database to the current schema, and replay the ledger."""
        schema.prepare(self._database)
        now = self._clock.now()
        details = {"made_at": self._result.manifest.made_at, "accepts_older_vault": self._accepts_older}
        with closing(sqlite.connect(self._database)) as connection:
            try:
                with sqlite.write_transaction(connection):
                    audit.note(
                        connection, now, operator_identity.current(), AuditAction.BACKUP_RESTORED, details=details
                    )
                    blocks = self._keys.blocks() if self._keys else ()
                    replay_result = replay(
                        connection, self._config.ledger_path, now, blocks, accept_incomplete=self._accepts_older
                    )
            except IncompleteError as error:
                raise BackupError(f"{error}; to restore nevertheless, use --accept-older-vault") from error
            self._result.replayed, self._result.locked, self._result.ledger_until = (
                replay_result.counts,
                replay_result.locked,
                replay_result.until,
            )
            self._result.ledger_flaw = replay_result.flaw
            if self._keys:
                with sqlite.write_transaction(connection):
                    self._result.replayed["messages_erased"] = unreadable.remove_all(connection, self._keys)
            sqlite.truncate_wal(connection)
        reach("return.settled")

    def _erase(self) -> None:
        """Erase messages that have expired since then from the database, or note why the server has to erase them."""
        with closing(sqlite.connect(self._database)) as connection:
            stored_policy = state.stored_policy(connection)
            if stored_policy is None:
                return  # no server has used it, so nothing can be due
            clock_fault = state.check_clock(connection, self._clock.read())
            overdue = status.overdue(connection, self._clock.now())
        has_deleted_messages = overdue.deleted_groups or overdue.deleted_accounts
        if overdue.expired_parts or has_deleted_messages or overdue.restored_messages or overdue.taken_back_messages:
            self._note("the archive has due messages: they are hidden")
        if self._result.ledger_flaw:
            self._note(
                f"{self._result.ledger_flaw}; legal holds that were added since are missing: add them again before you"
                " start the server; nothing was erased yet"
            )
        elif clock_fault:
            self._note(f"{clock_fault}: nothing was erased; see docs/operations/troubleshooting.md#the-clock-guard")
        elif stored_policy != self._config.policy:
            self._note(
                f"{', '.join(stored_policy.differing(self._config.policy))}: the configuration differs from that of the"
                " backup: it takes effect when the server starts, and no messages were erased by it yet"
            )
        elif error := self._erase_due(self._staged_config()):
            raise BackupError(f"due messages could not be erased: {error}")
        with closing(sqlite.connect(self._database)) as connection:
            sqlite.truncate_wal(connection)
        reach("return.erased")

    def _note(self, text: str) -> None:
        self._result.notes.append(f"{text}; the first run of the server erases due messages")

    def _staged_config(self) -> Config:
        """Return the configuration with the paths of the working folders."""
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
        """Move everything into place. If this is interrupted, the next restore removes the files and starts again."""
        for suffix in _SIDE_FILES:
            if os.path.lexists(path := self._database.with_name(self._database.name + suffix)):
                raise BackupError(f"{path}: exists, so the restored database is not complete")
        sync(self._database)
        write(self._folder / _PLACING, "\n".join(filter(None, map(_identity, (self._database, self._archive)))))
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
        (self._folder / _PLACING).rename(self._folder / _PLACED)  # from here on, the files in place are never removed
        sync(self._folder)
        reach("return.placed")
        shutil.rmtree(self._folder)
        sync(self._config.database.parent)
