"""Opens the key file of a database: makes it with the first start, and refuses one that is not its own.

A server without its keys can serve nothing. So a key file that is missing is never replaced: only a database on which
no server has run gets one.
"""

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from conclave.keys import copying, file, records
from conclave.keys.file import KeyFileError
from conclave.keys.inspection import Inspection
from conclave.keys.store import KeyStore
from conclave.logs.setup import get_logger
from conclave.store import message_keys
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError
from conclave.store.message_keys import KeyState

log = get_logger(__name__)

ADVICE = "; see docs/operations/backup.md#the-keys"
"""What a refusal ends with."""


def open_to_serve(database: Path, path: Path) -> KeyStore:
    """Open the keys for a server on ``database``, whose schema is this program's, or make them for a new database.

    ``path``: of the key file. What a restore took back loses its keys, and what had lost them, where an older key file
    was put back. Raises StoreError.
    """
    with closing(sqlite.connect(database)) as connection:
        state = message_keys.state(connection)
        if state is None:
            return _begin(connection, path)
        keys = _opened(connection, database, path, state)
        if is_old := keys.serial < state.lost_serial:
            log.warning("older_key_file", path=str(path))
            with sqlite.write_transaction(connection):  # a part of the changes that lose its keys may make up for it
                message_keys.note_unsettled(connection)
        if is_old or not state.is_settled:
            _settle(connection, keys)
        return keys


def require_fit(connection: sqlite3.Connection, database: Path, path: Path) -> None:
    """Raise StoreError if ``open_to_serve`` would. It takes no lock, and changes nothing."""
    state = message_keys.state(connection)
    if state is None and not path.exists():
        return
    if state:
        _require_there(database, path)
    try:
        found = Inspection(path)
        if state is None:
            _require_empty(path, is_empty=not found.blocks())
        else:
            _require_own(database, path, found.keys_id, state)
            copies = (Path(each.path) for each in message_keys.copies(connection) if each.serial > found.serial)
            _require_newest(path, next((each for each in copies if _is_later(each, found)), None))
    except KeyFileError as error:
        raise StoreError(f"keys.path: {error}") from error


def _is_later(copy: Path, found: Inspection) -> bool:
    with suppress(KeyFileError):  # it is away, or something else, or its disk does not answer
        return copying.later_serial(copy, found) > 0
    return False


def _require_there(database: Path, path: Path) -> None:
    if not path.exists():
        raise StoreError(
            f"{path}: there is no key file, and without it no message of {database} can be read: bring it back, or a"
            f" copy of it{ADVICE}"
        )


def _require_own(database: Path, path: Path, keys_id: bytes, state: KeyState) -> None:
    if keys_id != state.keys_id:
        raise StoreError(f"{path}: has the keys of another database than {database}{ADVICE}")


def _require_empty(path: Path, *, is_empty: bool) -> None:
    if not is_empty:
        raise StoreError(f"{path}: has the keys of another database: move it away, and keep it{ADVICE}")


def _require_newest(path: Path, newer: Path | None) -> None:
    if newer:
        raise StoreError(
            f"{path}: is older than its copy {newer}, in which it has keys that it lacks: put that in its place, or"
            f" move it away{ADVICE}"
        )


def open_to_read(database: Path, path: Path) -> KeyStore | None:
    """Open the keys for a command that reads or stores bodies; None: the database has none yet. Raises StoreError."""
    with closing(sqlite.connect(database, readonly=True)) as connection:
        state = message_keys.state(connection)
        return _opened(connection, database, path, state) if state else None


def _begin(connection: sqlite3.Connection, path: Path) -> KeyStore:
    """Make the key file of a new database; one without keys was made by a start that did not end."""
    try:
        if not path.exists():
            file.create(path, secrets.token_bytes(records.ID_BYTES))
        keys = KeyStore(path)
        with _closed_if_unfit(keys):
            _require_empty(path, is_empty=keys.is_empty)
    except (KeyFileError, OSError) as error:
        raise StoreError(f"keys.path: {error}") from error
    with sqlite.write_transaction(connection):
        message_keys.adopt(connection, keys.keys_id)
    log.info("keys_begun", path=str(path))
    return keys


def _opened(connection: sqlite3.Connection, database: Path, path: Path, state: KeyState) -> KeyStore:
    _require_there(database, path)
    try:
        keys = KeyStore(path)
        with _closed_if_unfit(keys):
            _require_own(database, path, keys.keys_id, state)
            _require_newest(path, _newer_copy(connection, keys))
    except KeyFileError as error:
        raise StoreError(f"keys.path: {error}") from error
    return keys


@contextmanager
def _closed_if_unfit(keys: KeyStore) -> Iterator[None]:
    try:
        yield
    except BaseException:
        keys.close()
        raise


def _newer_copy(connection: sqlite3.Connection, keys: KeyStore) -> Path | None:
    """Return a whole copy that has later changes: an older key file was put back, and would go on beside it.

    Later on it would have as many changes, and others: what only the copy has would be lost with the copy's renewal.
    """
    for each in message_keys.copies(connection):
        if each.serial > keys.serial and keys.is_older_than(Path(each.path)):
            return Path(each.path)
    return None


def _settle(connection: sqlite3.Connection, keys: KeyStore) -> None:
    """Lose all keys but those of what lives: nothing else names the others. No message is sent yet.

    No other process writes meanwhile: a run moves messages from one tier to the other, and they would be read in
    neither.
    """
    with sqlite.write_transaction(connection):
        found = message_keys.living(connection)
        try:
            count = keys.settle(
                (group_id, [*alive, *([future] if future else [])]) for (group_id, alive), future in found
            )
        except KeyFileError as error:
            raise StoreError(f"keys.path: {error}") from error
        message_keys.note_settled(connection, keys.serial)
    log.info("keys_settled", covers=count)
