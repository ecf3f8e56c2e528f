"""Checks that the vault and its copies exist, belong to this database, and are up to date."""

import sqlite3
from collections.abc import Iterator

from conclave.config.settings import Config
from conclave.doctor.findings import Finding, note, ok, wrong
from conclave.keys.file import KeyFileError
from conclave.keys.inspection import Inspection
from conclave.store import keyring, message_keys

_READ = "read docs/operations/vault.md"


def check(connection: sqlite3.Connection, config: Config) -> Iterator[Finding]:
    """Yield findings about the vault and its copies. ``start_check`` finds the reasons that prevent a start."""
    state = message_keys.state(connection)
    if state is None:
        yield ok("vault", "no server has run on this database yet: the first start creates its vault")
        return
    try:
        key_file = Inspection(config.keys_path)
    except KeyFileError as error:
        yield wrong("vault", f"{error}: no message can be read", f"restore the vault or a copy: {_READ}")
        return
    if key_file.keys_id != state.keys_id:
        yield wrong("vault", f"{config.vault_path}: belongs to another database", f"restore the right one: {_READ}")
        return
    if key_file.serial < state.serial:
        yield wrong("vault", f"{config.vault_path}: is older than the database", f"restore the newest: {_READ}")
        return
    count = message_keys.count(connection)
    yield ok("vault", f"{config.vault_path}: {key_file.size:,} bytes of keys; {count:,} messages need them")
    if not config.vault_copies:
        says = "there is no copy of the vault: if it is lost, all messages are"
        yield note("vault", says, "set vault.copies to folders on other disks")
    for each in config.vault_copies:
        if fault := keyring.copy_fault(each, key_file, config.ledger_path):
            yield wrong("vault", fault, "the server renews it when it can: check its disk")
        else:
            yield ok("vault", f"{each}: is an up-to-date copy")
