"""Copies the vault, and chooses the newest vault for a restore. Backups never contain the vault."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from conclave.backup import manifest
from conclave.backup.manifest import BackupError
from conclave.config.settings import KEYS, LEDGER, Config
from conclave.keys import copying
from conclave.keys.file import KeyFile, KeyFileError
from conclave.keys.inspection import Inspection
from conclave.store import keyring, message_keys
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError
from conclave.store.ledger import book
from conclave.store.ledger.book import LedgerError
from conclave.store.message_keys import KeyState


def copy(config: Config, target: Path) -> None:
    """Copy the vault to the folder ``target``, or update the copy there. Raises BackupError."""
    try:
        keys = keyring.open_to_read(config.database, config.keys_path)
        if keys is None:
            raise BackupError(f"{config.database}: has not been used by a server yet, so there is no vault")
        with closing(keys):
            keyring.update_copy(keys, config.ledger_path, target.absolute())
    except (StoreError, sqlite3.Error) as error:
        raise BackupError(str(error)) from error


def choose(config: Config, source: Path, *, accepts_older: bool) -> Inspection | None:
    """Return the newest key file for the backup in ``source``, from the vault or a configured copy.

    Return None if the backup needs no keys. ``accepts_older``: accept a key file that is damaged or older than the
    backup. Raises BackupError.
    """
    with closing(sqlite.connect(source / manifest.DATABASE, readonly=True, frozen=True)) as connection:
        key_state = message_keys.state(connection)
    if key_state is None:
        return None
    _recover_own(config, key_state)
    places = [each / KEYS for each in (config.vault_path, *config.vault_copies)]
    faults: list[str] = []
    readable = list(_readable_files(places, faults))
    candidates = [each for each in readable if each.keys_id == key_state.keys_id]
    if not candidates:
        searched = ", ".join(str(each.parent) for each in places)
        others = "; these are vaults of another server" if readable else ""
        unread = "".join(f"; {each}" for each in faults)
        raise BackupError(
            f"{source}: the vault of this server is not at {searched}{others}{unread}: copy the newest one to"
            f" {config.vault_path}; without it no message can be read{keyring.ADVICE}"
        )
    newest = max(candidates, key=lambda each: (not each.flaws, each.serial))
    latest = max(candidates, key=lambda each: each.serial)
    fault = _fault(newest, key_state) or (
        f"{latest.path}: is newer than {newest.path}, but damaged" if latest.serial > newest.serial else ""
    )
    if fault and not accepts_older:
        raise BackupError(f"{fault}; provide a newer one, or lose some messages by --accept-older-vault")
    return newest


def install(chosen: Inspection, config: Config) -> None:
    """Copy the chosen vault to the configured path. Raises BackupError."""
    if chosen.path == config.keys_path:
        return
    try:
        chosen.write(config.keys_path)
        with suppress(LedgerError):  # the existing ledger is newer, or the restore will report its fault
            book.copy(chosen.path.with_name(LEDGER), config.ledger_path)
    except KeyFileError as error:
        raise BackupError(str(error)) from error


def _recover_own(config: Config, key_state: KeyState) -> None:
    """Complete an interrupted write to the server's key file. Raises BackupError."""
    if not config.keys_path.exists():
        return
    try:
        own_file = KeyFile(config.keys_path)
    except KeyFileError as error:
        raise BackupError(f"vault.path: {error}") from error
    own_file.close()
    if own_file.keys_id != key_state.keys_id:
        raise BackupError(
            f"{config.vault_path}: is not the vault of the backup's server: move it away first, and keep it"
        )


def _readable_files(places: list[Path], faults: list[str]) -> Iterator[Inspection]:
    """Yield the key files that exist and can be read. Adds the reasons to ``faults`` why others cannot be read.

    The head is read first, with a timeout: the disk of a copy may hang.
    """
    for path in places:
        try:
            if copying.read_head(path):
                yield Inspection(path)
        except KeyFileError as error:
            faults.append(str(error))


def _fault(file: Inspection, key_state: KeyState) -> str:
    if file.serial < key_state.serial:
        return f"{file.path}: is older than the backup, so keys of its newest messages may be missing"
    return f"{file.path}: is damaged: at byte {file.flaws[0].offset} {file.flaws[0].description}" if file.flaws else ""
