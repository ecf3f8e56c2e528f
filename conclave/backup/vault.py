"""The vault and backups: it is in none of them, and a restore takes the newest that there is."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from conclave.backup import manifest
from conclave.backup.manifest import BackupError
from conclave.config.settings import KEYS, LEDGER, Config
from conclave.keys.file import KeyFile, KeyFileError
from conclave.keys.inspection import Inspection
from conclave.store import keyring, message_keys
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError
from conclave.store.ledger import book
from conclave.store.ledger.book import LedgerError
from conclave.store.message_keys import KeyState


def copy(config: Config, target: Path) -> None:
    """Make a copy of the vault in the folder ``target``, or bring it up to date. Raises BackupError."""
    try:
        keys = keyring.open_to_read(config.database, config.keys_path)
        if keys is None:
            raise BackupError(f"{config.database}: no server has run on it, so there is no vault yet")
        with closing(keys):
            keyring.update_copy(keys, config.ledger_path, target.absolute())
    except (StoreError, sqlite3.Error) as error:
        raise BackupError(str(error)) from error


def choose(config: Config, source: Path, *, accepts_older: bool) -> Inspection | None:
    """Return the newest key file for the backup in ``source``: the one in the vault, or in a copy that settings name.

    None: the backup needs none. ``accepts_older``: one that is older than the backup, or damaged, will do. Raises
    BackupError.
    """
    with closing(sqlite.connect(source / manifest.DATABASE, readonly=True, frozen=True)) as connection:
        needed = message_keys.state(connection)
    if needed is None:
        return None
    _settle_own(config, needed)
    places = [each / KEYS for each in (config.vault_path, *config.vault_copies)]
    found = list(_found(places))
    own = [each for each in found if each.keys_id == needed.keys_id]
    if not own:
        looked = ", ".join(str(each.parent) for each in places)
        others = "; what is there is the vault of another server" if found else ""
        raise BackupError(
            f"{source}: the vault of this server is not at {looked}{others}: bring the newest copy of it to"
            f" {config.vault_path}; without it no message can be read{keyring.ADVICE}"
        )
    newest = max(own, key=lambda each: (not each.flaws, each.serial))
    latest = max(own, key=lambda each: each.serial)
    fault = _fault(newest, needed) or (
        f"{latest.path}: is newer than {newest.path}, but damaged" if latest.serial > newest.serial else ""
    )
    if fault and not accepts_older:
        raise BackupError(f"{fault}; bring a newer one, or give --accept-older-vault, and some messages are lost")
    return newest


def place(chosen: Inspection, config: Config) -> None:
    """Put the chosen vault where the server wants it. Raises BackupError."""
    if chosen.path == config.keys_path:
        return
    try:
        chosen.write(config.keys_path)
        with suppress(LedgerError):  # what is there is later, or else the restore tells what is wrong with it
            book.copy(chosen.path.with_name(LEDGER), config.ledger_path)
    except KeyFileError as error:
        raise BackupError(str(error)) from error


def _settle_own(config: Config, needed: KeyState) -> None:
    """Have the server's own key file be as whole as it can be; a server that died may have left something half done."""
    if not config.keys_path.exists():
        return
    try:
        own = KeyFile(config.keys_path)
    except KeyFileError as error:
        raise BackupError(f"vault.path: {error}") from error
    own.close()
    if own.keys_id != needed.keys_id:
        raise BackupError(
            f"{config.vault_path}: is the vault of another server than the backup: move it away first, and keep it"
        )


def _found(places: list[Path]) -> Iterator[Inspection]:
    """Look at the key files that are there. One that cannot be read is left out."""
    for path in places:
        with suppress(KeyFileError):
            yield Inspection(path)


def _fault(found: Inspection, needed: KeyState) -> str:
    if found.serial < needed.serial:
        return f"{found.path}: is older than the backup, so that keys of its newest messages may be missing"
    return (
        f"{found.path}: is damaged: at byte {found.flaws[0].offset} {found.flaws[0].description}" if found.flaws else ""
    )
