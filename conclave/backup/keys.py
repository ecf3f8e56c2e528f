"""The keys of backups: one current copy beside them, in none of them, and the choice of the newest for a restore."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from conclave.backup.manifest import BackupError, KeysEntry
from conclave.config.settings import Config
from conclave.keys.file import KeyFile, KeyFileError
from conclave.keys.inspection import Inspection
from conclave.store import bodies, keyring, message_keys
from conclave.store.archive import reclaiming
from conclave.store.engine import sqlite
from conclave.store.message_keys import KeyCopy
from conclave.store.resources import timers

NAME = "keys"
"""The name of the copy beside the backups. It is replaced each time, and the former one is overwritten."""

LOOKED_AT = 1000
"""1,000 messages are looked at together."""


def copy(config: Config, folder: Path, now: int) -> KeysEntry | None:
    """Renew the copy of the key file in the folder for backups; None: the database has no keys. Raises BackupError.

    Call it after the database was copied: then no key of a message in the backup is missing, unless it was lost since.
    """
    keys = keyring.open_to_read(config.database, config.keys_path)
    if keys is None:
        return None
    with closing(keys):
        target = folder / NAME
        try:
            keys.refresh()
            serial = keys.copy(target)
        except KeyFileError as error:
            raise BackupError(str(error)) from error
        with closing(sqlite.connect(config.database)) as connection, sqlite.write_transaction(connection):
            message_keys.note_copy(connection, KeyCopy(str(target), now, serial))
        return KeysEntry(keys.keys_id.hex(), serial)


def fault_of(folder: Path, told: KeysEntry | None) -> str:
    """Return in one line what is wrong with the copy of the keys beside the backup in ``folder``; "" if nothing is."""
    if told is None:
        return ""
    path = folder.absolute().parent / NAME
    try:
        return _fault(Inspection(path), told) if path.exists() else f"{path}: the keys of the backup are missing"
    except KeyFileError as error:
        return str(error)


def choose(config: Config, source: Path, told: KeysEntry, *, incomplete: bool) -> Inspection:
    """Return the newest key file for the backup in ``source``: the server's own, a copy of it, or that beside it.

    ``incomplete``: one that is older than the backup, or damaged, will do. Raises BackupError.
    """
    _settle_own(config, told)
    places = dict.fromkeys((config.keys_path, source.absolute().parent / NAME, *map(Path, config.keys.copies)))
    found = list(_found(places))
    own = [each for each in found if each.keys_id.hex() == told.keys_id]
    if not own:
        looked = ", ".join(map(str, places))
        others = "; what is there has the keys of another server" if found else ""
        raise BackupError(
            f"{source}: its messages are under keys, and no key file of this server is at {looked}{others}: bring the"
            f" newest one to {config.keys_path}; without it no message can be read{keyring.ADVICE}"
        )
    newest = max(own, key=lambda each: (not each.flaws, each.serial))
    fault = _fault(newest, told)
    if fault and not incomplete:
        raise BackupError(f"{fault}; bring a newer one, or give --incomplete-keys, and some messages are lost")
    return newest


def place(chosen: Inspection, config: Config) -> None:
    """Put the chosen key file where the server wants it. Raises BackupError."""
    if chosen.path != config.keys_path:
        try:
            chosen.write(config.keys_path)
        except KeyFileError as error:
            raise BackupError(str(error)) from error


def forget_erased(connection: sqlite3.Connection, chosen: Inspection) -> int:
    """Erase what of a copied database has lost its keys: it was erased since. Return how many messages that were.

    Call it in a transaction.
    """
    count = 0
    for group_key, group_id in connection.execute("SELECT group_key, group_id FROM groups").fetchall():
        query = "SELECT sequence_num FROM messages WHERE group_key = ?"
        rows = [row[0] for row in connection.execute(query, (group_key,))]
        for at in range(0, len(rows), LOOKED_AT):
            some = rows[at : at + LOOKED_AT]
            lives = chosen.living(group_id, some)
            dead = [number for number, is_alive in zip(some, lives, strict=True) if not is_alive]
            _erase(connection, group_key, dead)
            count += len(dead)
    _forget_others(connection, chosen)
    message_keys.note_unsettled(connection)
    reclaiming.note_unsettled(connection)
    return count


def _forget_others(connection: sqlite3.Connection, chosen: Inspection) -> None:
    """Remove what refers to bodies that are not messages' and whose keys are lost: it was used, or ended, since."""
    ids = [row[0] for row in connection.execute("SELECT body_id FROM bodies ORDER BY body_id")]
    lives = chosen.living(message_keys.OTHERS, ids)
    dead = json.dumps([body_id for body_id, is_alive in zip(ids, lives, strict=True) if not is_alive])
    some = "(SELECT value FROM json_each(?1))"
    for table, columns in bodies.REFERENCES:
        condition = " OR ".join(f"{column} IN {some}" for column in columns)
        connection.execute(f"DELETE FROM {table} WHERE {condition}", (dead,))
    connection.execute(f"UPDATE groups SET group_info_body = NULL WHERE group_info_body IN {some}", (dead,))
    connection.execute(f"DELETE FROM bodies WHERE body_id IN {some}", (dead,))


def _erase(connection: sqlite3.Connection, group_key: int, dead: list[int]) -> None:
    connection.executemany(
        "DELETE FROM messages WHERE group_key = ? AND sequence_num = ?", [(group_key, number) for number in dead]
    )
    timers.forget(connection, {group_key: dead} if dead else {})
    bodies.delete_of_messages(connection, [bodies.message_id(group_key, number) for number in dead])


def _settle_own(config: Config, told: KeysEntry) -> None:
    """Have the server's own key file be as whole as it can be; a server that died may have left something half done."""
    if not config.keys_path.exists():
        return
    try:
        own = KeyFile(config.keys_path)
    except KeyFileError as error:
        raise BackupError(f"keys.path: {error}") from error
    own.close()
    if own.keys_id.hex() != told.keys_id:
        raise BackupError(
            f"{config.keys_path}: has the keys of another server than the backup: move it away first, and keep it"
        )


def _found(places: dict[Path, None]) -> Iterator[Inspection]:
    """Look at the key files that are there. One that cannot be read is none."""
    for path in places:
        if path.exists():
            try:
                yield Inspection(path)
            except KeyFileError:
                continue


def _fault(found: Inspection, told: KeysEntry) -> str:
    if found.keys_id.hex() != told.keys_id:
        return f"{found.path}: has the keys of another server"
    if found.serial < told.serial:
        return f"{found.path}: is older than the backup, so that keys of its newest messages may be missing"
    return f"{found.path}: is damaged: at byte {found.flaws[0].offset} {found.flaws[0].told}" if found.flaws else ""
