"""Destroys the keys of what a run has erased, and renews the copies of the vault, so that they forget it too."""

import sqlite3

from conclave.failpoints import reach
from conclave.keys.file import KeyFileError
from conclave.store import keyring, message_keys, vault
from conclave.store.engine.faults import StoreError
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
        if keys.serial < state.serial:
            raise KeyFileError(f"{engine.config.keys_path}: an older vault was put in its place{keyring.ADVICE}")
        while noted := hot.read(message_keys.noted):
            hot.write(message_keys.make_durable)  # a power failure must not bring back the rows of keys that are lost
            reach("run.keys_noted")
            keys.erase(noted.told)
            reach("run.keys_lost")
            hot.write(message_keys.forget, noted.rows, keys.serial)
        are_lost = True
        vault.renew_all(keys, engine.config.ledger_path, engine.config.vault_copies)
    except _FAULTS as error:
        done.error = done.error or f"keys: {error}"
    return are_lost
