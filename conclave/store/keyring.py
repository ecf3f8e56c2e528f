"""Opens the key file of a database: creates it at the first start, and rejects a foreign or an older one.

A missing key file is never replaced, since nothing can be served without the keys: only a database on which no server
has run gets a new one. To detect a key file that was replaced by an older one, the database stores the newest change on
which it relies, and the copies of the vault are compared too.

This module also updates the copies of the vault, folders on other disks. A copy that is newer than the vault is never
replaced. Each access has a timeout, since such a disk may hang.
"""

import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

from conclave.config.settings import KEYS, LEDGER
from conclave.failpoints import reach
from conclave.keys import copying, file, records
from conclave.keys.copying import KnownChanges
from conclave.keys.file import Head, KeyFileError, as_key_file_errors, head_of
from conclave.keys.inspection import Inspection
from conclave.keys.store import KeyStore
from conclave.logs.setup import get_logger
from conclave.store import message_keys, unreadable
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError
from conclave.store.ledger import book, changes
from conclave.store.message_keys import KeyState
from conclave.system.disk_timeout import run_with_timeout

log = get_logger(__name__)

ADVICE = "; see docs/operations/vault.md#if-it-is-lost-or-older"
"""The end of error messages."""


def open_to_serve(database: Path, path: Path, copies: Sequence[Path] = (), *, accepts_older: bool = False) -> KeyStore:
    """Open the keys for a server on ``database``, whose schema is current, or create them for a new database.

    ``path``: the key file. ``copies``: copies of its vault. After a restore, the keys of messages that are no longer
    stored are destroyed. ``accepts_older``: accept a file that lacks keys, and erase the messages without keys. Raises
    StoreError.
    """
    with closing(sqlite.connect(database)) as connection:
        state = message_keys.state(connection)
        if state is None:
            return _create_vault(connection, path)
        keys = _open_own(connection, database, path, state, is_older_allowed=accepts_older)
        with _closed_on_error(keys), _as_store_errors():
            _require_newest(path, keys, copies)
            if is_older := keys.serial < state.serial:
                with sqlite.write_transaction(connection):
                    count = unreadable.remove_all(connection, keys)
                log.warning("older_vault_accepted", path=str(path), messages_lost=count)
            if is_older or not state.is_settled:
                with sqlite.write_transaction(connection):
                    settle(connection, keys)
        return keys


def require_usable(
    connection: sqlite3.Connection,
    database: Path,
    path: Path,
    copies: Sequence[Path] = (),
    *,
    accepts_older: bool = False,
) -> None:
    """Raise StoreError if ``open_to_serve`` would. Takes no lock, and changes nothing."""
    state = message_keys.state(connection)
    if state is None and not path.exists():
        return
    if state:
        _require_exists(database, path)
    with _as_store_errors():
        inspection = Inspection(path)
        if state is None:
            _require_empty(connection, path, is_empty=not inspection.blocks())
            return
        _require_own(database, path, inspection.keys_id, state)
        if not accepts_older:
            _require_complete(connection, path, inspection, state)
        _require_newest(path, inspection, copies)


def require_place(vault: Path) -> None:
    """Raise StoreError or OSError unless the folder ``vault`` exists or can be created. Changes nothing."""
    if not vault.parent.is_dir():
        raise StoreError(f"vault.path: {vault}: there is no folder {vault.parent}; is its disk mounted?")
    if os.path.lexists(vault) and not vault.is_dir():
        raise StoreError(f"vault.path: {vault}: is not a folder")


def require_unused(database: Path, path: Path) -> None:
    """Raise StoreError or OSError if a new database cannot have its keys at ``path``. Changes nothing."""
    require_place(path.parent)
    if not path.exists():
        return
    with _as_store_errors():
        is_empty = not Inspection(path).blocks()
    if not is_empty:
        raise StoreError(
            f"{path}: belongs to another database, and there is no {database}: correct database_path, or put the"
            f" database back; for a new one move that vault away, and keep it{ADVICE}"
        )


def open_to_read(database: Path, path: Path) -> KeyStore | None:
    """Open the keys for a command that reads or stores bodies; None if the database has none yet. Raises StoreError."""
    with closing(sqlite.connect(database, readonly=True)) as connection:
        state = message_keys.state(connection)
        return _open_own(connection, database, path, state) if state else None


def _create_vault(connection: sqlite3.Connection, path: Path) -> KeyStore:
    """Create the vault of a new database, or use a vault without keys that an interrupted start has left."""
    with _as_store_errors():
        if not path.exists():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            file.create(path, secrets.token_bytes(records.ID_BYTES))
        keys = KeyStore(path)
        with _closed_on_error(keys):
            _require_empty(connection, path, is_empty=keys.is_empty)
    with sqlite.write_transaction(connection):
        message_keys.adopt(connection, keys.keys_id)
    log.info("vault_begun", path=str(path.parent))
    return keys


def _open_own(
    connection: sqlite3.Connection, database: Path, path: Path, state: KeyState, *, is_older_allowed: bool = False
) -> KeyStore:
    _require_exists(database, path)
    with _as_store_errors():
        keys = KeyStore(path)
        with _closed_on_error(keys):
            _require_own(database, path, keys.keys_id, state)
            if not is_older_allowed:
                _require_complete(connection, path, keys, state)
        return keys


@contextmanager
def _as_store_errors() -> Iterator[None]:
    """Convert errors of the key file or its folder to a StoreError that names the setting."""
    try:
        yield
    except KeyFileError as error:
        raise StoreError(f"vault.path: {error}") from error
    except OSError as error:
        raise StoreError(f"vault.path: {error.filename}: {error.strerror}") from error


@contextmanager
def _closed_on_error(keys: KeyStore) -> Iterator[None]:
    try:
        yield
    except BaseException:
        keys.close()
        raise


def _require_exists(database: Path, path: Path) -> None:
    if not path.exists():
        raise StoreError(
            f"{path}: the vault is missing, and without it no message of {database} can be read: restore it, or a copy"
            f" of it{ADVICE}"
        )


def _require_own(database: Path, path: Path, keys_id: bytes, state: KeyState) -> None:
    if keys_id != state.keys_id:
        raise StoreError(f"{path}: belongs to another database than {database}{ADVICE}")


def _require_empty(connection: sqlite3.Connection, path: Path, *, is_empty: bool) -> None:
    """Raise StoreError if the vault has keys, or the ledger of another database, which has no keys yet."""
    tip = book.tip(path.with_name(LEDGER))
    if not is_empty or (tip and tip[0] != changes.ledger_state(connection).ledger_id):
        raise StoreError(
            f"{path}: belongs to another database: set another vault.path, or move that vault away, and keep it{ADVICE}"
        )


def _require_complete(connection: sqlite3.Connection, path: Path, keys: KeyStore | Inspection, state: KeyState) -> None:
    """Raise StoreError if the key file lacks changes on which the database relies."""
    if keys.serial < state.serial:
        count = unreadable.count(connection, keys)
        raise StoreError(
            f"{path}: is older than the database, which has {count:,} messages without keys: restore the newest vault,"
            f" or a copy of it; with --accept-older-vault these messages are lost{ADVICE}"
        )


def _require_newest(path: Path, keys: KeyStore | Inspection, copies: Sequence[Path]) -> None:
    """Raise StoreError if an undamaged copy is newer, so that the vault must have been replaced by an older one.

    Otherwise the vault would reach the copy's serial with different changes, and the next update of the copy would
    destroy the keys that only the copy has.
    """
    for each in copies:
        with suppress(KeyFileError):  # missing, not a key file, or its disk hangs
            newer = copying.later_serial(each / KEYS, keys)
            if newer and Inspection(path).serial < newer:  # another process may have changed both in between
                raise StoreError(
                    f"{path}: is older than the copy {each}, which has keys that it lacks: replace the vault by the"
                    f" copy, or move the copy away{ADVICE}"
                )


def settle(connection: sqlite3.Connection, keys: KeyStore) -> None:
    """Destroy all keys except those of stored bodies: no record of the others exists. Call it before messages are sent.

    Call it in a transaction after the one that removed the bodies. Its write lock prevents a run from moving messages
    between the tiers at the same time, which might be missed. Raises StoreError.
    """
    with _as_store_errors():
        stored_numbers = message_keys.living(connection)
        count = keys.retain_only(
            (group_id, [*stored, *([unassigned] if unassigned else [])])
            for (group_id, stored), unassigned in stored_numbers
        )
    message_keys.note_settled(connection, keys.serial)
    log.info("keys_settled", covers=count)


class VaultError(StoreError):
    """A copy of the vault cannot be updated or read. The message is a line for operators."""


def update_copy(keys: KeyStore, ledger: Path, copy: Path) -> None:
    """Update a copy of the vault, creating its folder if it is missing. Raises VaultError.

    ``ledger``: the ledger of the vault. Files that are current already are not written.
    """
    try:
        keys.refresh()
        target = copy / KEYS
        with as_key_file_errors(copy):
            run_with_timeout(copying.TIMEOUT_SECONDS, copy, partial(copy.mkdir, mode=0o700, exist_ok=True))
        if not copying.is_current(keys, target):
            keys.copy(target)
            reach("vault.keys_copied")
        with as_key_file_errors(copy):
            run_with_timeout(
                copying.copy_timeout(ledger), copy / LEDGER, partial(_copy_ledger, keys.path, ledger, copy)
            )
        reach("vault.ledger_copied")
    except (KeyFileError, StoreError) as error:
        raise VaultError(f"vault.copies: {error}") from error


def _copy_ledger(keys_path: Path, ledger: Path, copy: Path) -> None:
    """Copy the ledger, while no other process writes copies there."""
    with copying.copy_lock(keys_path, copy / LEDGER):
        book.copy(ledger, copy / LEDGER)


def update_copies(keys: KeyStore, ledger: Path, copies: Iterable[Path]) -> None:
    """Update all copies. If one fails, the others are still updated.

    Raises VaultError with all failures.
    """
    failures = []
    for each in copies:
        try:
            update_copy(keys, ledger, each)
        except VaultError as error:
            failures.append(str(error))
    if failures:
        raise VaultError("; ".join(dict.fromkeys(failures)))


def copy_fault(copy: Path, keys: KnownChanges, ledger: Path) -> str:
    """Return the reason why a copy could not replace the vault now, as one line; "" if it could.

    ``keys`` and ``ledger``: those of the vault.
    """
    try:
        head, tip = run_with_timeout(copying.TIMEOUT_SECONDS, copy, partial(_heads, copy))
    except (KeyFileError, StoreError) as error:
        return str(error)
    except OSError as error:
        return f"{copy}: {error.strerror}"
    if head is None:
        return f"{copy}: the copy is missing"
    if head.keys_id != keys.keys_id:
        return f"{copy}: is a copy of another vault"
    own_tip = None
    with suppress(StoreError):  # health reports faults of the ledger itself
        own_tip = book.tip(ledger)
    if head.serial < keys.serial or (own_tip and (tip is None or tip[1] < own_tip[1])):
        return f"{copy}: is outdated: it lacks the newest changes"
    return ""


def _heads(copy: Path) -> tuple[Head | None, tuple[str, int] | None]:
    return head_of(copy / KEYS), book.tip_of_copy(copy / LEDGER)
