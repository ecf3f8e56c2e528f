"""Opens the key file of a database: makes it with the first start, and refuses one that is not its own, or is older.

A server without its keys can serve nothing. So a key file that is missing is never replaced: only a database on which
no server has run gets one. The database notes the newest change of the file that it relies on, and copies of the vault
may have later ones: by both an older file is recognised that was put in its place.

Copies of the vault, folders on other disks, are kept up to date here too. What is newer than the vault is never
replaced. A disk that does not answer holds no process up for longer than a bound.
"""

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
from conclave.keys.file import Head, KeyFileError, head_of, told
from conclave.keys.inspection import Inspection
from conclave.keys.store import KeyStore
from conclave.logs.setup import get_logger
from conclave.store import message_keys, unreadable
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError
from conclave.store.ledger import book
from conclave.store.message_keys import KeyState
from conclave.system.answering import within

log = get_logger(__name__)

ADVICE = "; see docs/operations/vault.md#if-it-is-lost-or-older"
"""What a refusal ends with."""


def open_to_serve(database: Path, path: Path, copies: Sequence[Path] = (), *, accepts_older: bool = False) -> KeyStore:
    """Open the keys for a server on ``database``, whose schema is this program's, or make them for a new database.

    ``path``: of the key file. ``copies``: of its vault. What a restore took back loses its keys. ``accepts_older``: a
    file that lacks keys will do, and messages without keys are erased. Raises StoreError.
    """
    with closing(sqlite.connect(database)) as connection:
        state = message_keys.state(connection)
        if state is None:
            return _begin(connection, path)
        keys = _opened(connection, database, path, state, is_older_allowed=accepts_older)
        with _closed_if_unfit(keys), _told():
            _require_newest(path, keys, copies)
            if is_older := keys.serial < state.serial:
                with sqlite.write_transaction(connection):
                    count = unreadable.forget(connection, keys)
                log.warning("older_vault_accepted", path=str(path), messages_lost=count)
            if is_older or not state.is_settled:
                _settle(connection, keys)
        return keys


def require_fit(
    connection: sqlite3.Connection,
    database: Path,
    path: Path,
    copies: Sequence[Path] = (),
    *,
    accepts_older: bool = False,
) -> None:
    """Raise StoreError if ``open_to_serve`` would. It takes no lock, and changes nothing."""
    state = message_keys.state(connection)
    if state is None and not path.exists():
        return
    if state:
        _require_there(database, path)
    with _told():
        found = Inspection(path)
        if state is None:
            _require_empty(path, is_empty=not found.blocks())
            return
        _require_own(database, path, found.keys_id, state)
        if not accepts_older:
            _require_complete(connection, path, found, state)
        _require_newest(path, found, copies)


def open_to_read(database: Path, path: Path) -> KeyStore | None:
    """Open the keys for a command that reads or stores bodies; None: the database has none yet. Raises StoreError."""
    with closing(sqlite.connect(database, readonly=True)) as connection:
        state = message_keys.state(connection)
        return _opened(connection, database, path, state) if state else None


def _begin(connection: sqlite3.Connection, path: Path) -> KeyStore:
    """Make the vault of a new database; one without keys was made by a start that did not end."""
    with _told():
        if not path.exists():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            file.create(path, secrets.token_bytes(records.ID_BYTES))
        keys = KeyStore(path)
        with _closed_if_unfit(keys):
            _require_empty(path, is_empty=keys.is_empty)
    with sqlite.write_transaction(connection):
        message_keys.adopt(connection, keys.keys_id)
    log.info("vault_begun", path=str(path.parent))
    return keys


def _opened(
    connection: sqlite3.Connection, database: Path, path: Path, state: KeyState, *, is_older_allowed: bool = False
) -> KeyStore:
    _require_there(database, path)
    with _told():
        keys = KeyStore(path)
        with _closed_if_unfit(keys):
            _require_own(database, path, keys.keys_id, state)
            if not is_older_allowed:
                _require_complete(connection, path, keys, state)
        return keys


@contextmanager
def _told() -> Iterator[None]:
    """Raise what is wrong with the key file, or with its folder, as a StoreError that names the setting."""
    try:
        yield
    except KeyFileError as error:
        raise StoreError(f"vault.path: {error}") from error
    except OSError as error:
        raise StoreError(f"vault.path: {error.filename}: {error.strerror}") from error


@contextmanager
def _closed_if_unfit(keys: KeyStore) -> Iterator[None]:
    try:
        yield
    except BaseException:
        keys.close()
        raise


def _require_there(database: Path, path: Path) -> None:
    if not path.exists():
        raise StoreError(
            f"{path}: the vault is missing, and without it no message of {database} can be read: bring it back, or a"
            f" copy of it{ADVICE}"
        )


def _require_own(database: Path, path: Path, keys_id: bytes, state: KeyState) -> None:
    if keys_id != state.keys_id:
        raise StoreError(f"{path}: is in the vault of another database than {database}{ADVICE}")


def _require_empty(path: Path, *, is_empty: bool) -> None:
    if not is_empty:
        raise StoreError(f"{path}: is in the vault of another database: move that away, and keep it{ADVICE}")


def _require_complete(connection: sqlite3.Connection, path: Path, keys: KeyStore | Inspection, state: KeyState) -> None:
    """Raise StoreError for a file that lacks changes on which the database relies."""
    if keys.serial < state.serial:
        count = unreadable.count(connection, keys)
        raise StoreError(
            f"{path}: is older than the database, which has {count:,} messages without keys: bring the newest vault"
            f" back, or a copy of it; with --accept-older-vault these messages are lost{ADVICE}"
        )


def _require_newest(path: Path, keys: KeyStore | Inspection, copies: Sequence[Path]) -> None:
    """Raise StoreError if a whole copy has later changes: an older vault was put back, and would go on beside it.

    Later on it would have as many changes, and others: what only the copy has would be lost with the copy's renewal.
    """
    for each in copies:
        with suppress(KeyFileError):  # it is away, or something else, or its disk does not answer
            later = copying.later_serial(each / KEYS, keys)
            if later and Inspection(path).serial < later:  # another process may have changed it, and the copy after it
                raise StoreError(
                    f"{path}: is older than the copy {each}, which has keys that it lacks: put that in its place, or"
                    f" move it away{ADVICE}"
                )


def _settle(connection: sqlite3.Connection, keys: KeyStore) -> None:
    """Lose all keys but those of what lives: nothing else names the others. No message is sent yet.

    No other process writes meanwhile: a run moves messages from one tier to the other, and they would be read in
    neither.
    """
    with sqlite.write_transaction(connection):
        found = message_keys.living(connection)
        count = keys.settle((group_id, [*alive, *([future] if future else [])]) for (group_id, alive), future in found)
        message_keys.note_settled(connection, keys.serial)
    log.info("keys_settled", covers=count)


class VaultError(StoreError):
    """A copy of the vault cannot be brought up to date, or read. The message is a line for operators."""


def renew(keys: KeyStore, ledger: Path, copy: Path) -> None:
    """Bring a copy up to date, and make its folder if that is missing. Raises VaultError.

    ``ledger``: of the vault. What the copy has already is not written.
    """
    try:
        keys.refresh()
        target = copy / KEYS
        with told(copy):
            within(copying.ANSWER_SECONDS, copy, partial(copy.mkdir, mode=0o700, exist_ok=True))
        if not copying.is_current(keys, target):
            keys.copy(target)
            reach("vault.keys_copied")
        with told(copy):
            within(copying.whole_seconds(ledger), copy / LEDGER, partial(_copy_ledger, keys.path, ledger, copy))
        reach("vault.ledger_copied")
    except (KeyFileError, StoreError) as error:
        raise VaultError(f"vault.copies: {error}") from error


def _copy_ledger(keys_path: Path, ledger: Path, copy: Path) -> None:
    """Copy the ledger as it is once no other process writes copies there."""
    with copying.none_written(keys_path, copy / LEDGER):
        book.copy(ledger, copy / LEDGER)


def renew_all(keys: KeyStore, ledger: Path, copies: Iterable[Path]) -> None:
    """Renew each copy, whatever becomes of the others: one disk that is away, or hangs, keeps no other copy old.

    Raises VaultError, which names all that failed.
    """
    failed = []
    for each in copies:
        try:
            renew(keys, ledger, each)
        except VaultError as error:
            failed.append(str(error))
    if failed:
        raise VaultError("; ".join(dict.fromkeys(failed)))


def fault_of(copy: Path, keys: KnownChanges, ledger: Path) -> str:
    """Return in one line why a copy would not do if the vault were lost now; "" if it would.

    ``keys`` and ``ledger``: of the vault.
    """
    try:
        found, tip = within(copying.ANSWER_SECONDS, copy, partial(_look, copy))
    except (KeyFileError, StoreError) as error:
        return str(error)
    except OSError as error:
        return f"{copy}: {error.strerror}"
    if found is None:
        return f"{copy}: there is no copy"
    if found.keys_id != keys.keys_id:
        return f"{copy}: is a copy of another vault"
    own = None
    with suppress(StoreError):  # health tells of the ledger itself
        own = book.tip(ledger)
    if found.serial < keys.serial or (own and (tip is None or tip[1] < own[1])):
        return f"{copy}: is late: it lacks the newest changes"
    return ""


def _look(copy: Path) -> tuple[Head | None, tuple[str, int] | None]:
    return head_of(copy / KEYS), book.tip_of_copy(copy / LEDGER)
