"""Destroys the keys of what a run has erased, and renews the copies of the key file, so that they forget it too."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from conclave.failpoints import reach
from conclave.keys import copying
from conclave.keys.file import KeyFileError
from conclave.keys.store import KeyStore
from conclave.store import keyring, message_keys
from conclave.store.engine.faults import StoreError
from conclave.store.message_keys import KeyCopy
from spark.environment import RunEnvironment
from spark.hot_store import Hot
from spark.report import Report

_FAULTS = (KeyFileError, StoreError, sqlite3.Error)


def lose(engine: RunEnvironment, hot: Hot, done: Report) -> bool:
    """Lose the keys that are noted, by this run or by one that did not get as far as this; renew the copies.

    Returns whether they are lost. The report names what failed; then the next run does it.
    """
    are_lost = False
    try:
        state = hot.read(message_keys.state)
        if state is None:
            return True
        if engine.is_hot_only:
            return False
        keys = engine.keys(hot)
        keys.refresh()
        if keys.serial < state.lost_serial:
            raise KeyFileError(
                f"{engine.config.keys_path}: is an older one, with keys that were lost since: restart the server, which"
                f" loses them{keyring.ADVICE}"
            )
        while noted := hot.read(message_keys.noted):
            hot.write(message_keys.make_durable)  # a power failure must not bring back the rows of keys that are lost
            reach("run.keys_noted")
            keys.erase(noted.told)
            reach("run.keys_lost")
            hot.write(message_keys.forget, noted.rows, keys.serial)
        are_lost = True
        _renew_all(keys, list(map(Path, engine.config.keys.copies)), hot)
    except _FAULTS as error:
        done.error = done.error or f"keys: {error}"
    return are_lost


def _renew_all(keys: KeyStore, targets: Sequence[Path], hot: Hot) -> None:
    """Renew each copy, whatever becomes of the others: one disk that is away, or hangs, keeps no other copy old.

    Raises KeyFileError, which names all that failed.
    """
    failed = []
    for each in targets:
        try:
            _renew(keys, each, hot)
        except _FAULTS as error:
            failed.append(str(error))
    if failed:
        raise KeyFileError("; ".join(dict.fromkeys(failed)))


def _renew(keys: KeyStore, target: Path, hot: Hot) -> None:
    """Write a copy of the key file, unless it has all changes. Raises KeyFileError."""
    keys.refresh()
    found = copying.head(target)
    if found is None or found != (keys.serial, keys.keys_id):
        keys.copy(target)
        reach("run.keys_copied")
    hot.write(message_keys.note_copy, KeyCopy(str(target), hot.now, keys.serial))
