"""Bodies at rest: each is encrypted under its own key."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from conclave.keys import cipher, tree
from conclave.keys.cipher import AlteredError
from conclave.keys.file import KeyFileError
from conclave.keys.store import KeyStore
from conclave.store.engine.connection import of_store
from conclave.store.engine.faults import StoreError, store_error
from conclave.store.engine.group_commit import NotCachedError
from conclave.store.message_keys import OTHERS, note_serial


def number(connection: sqlite3.Connection, group_key: int, count: int) -> tuple[int, int, bytes]:
    """Give the next ``count`` numbers of a group. Return the last one, the group's ``expired_before``, and its id.

    Raises StoreError.
    """
    last, expired_before, group_id = connection.execute(
        "UPDATE groups SET last_seq = last_seq + ? WHERE group_key = ? RETURNING last_seq, expired_before, group_id",
        (count, group_key),
    ).fetchone()
    free = _free(connection, group_id, last, count)
    if free != last:
        connection.execute("UPDATE groups SET last_seq = ? WHERE group_key = ?", (free, group_key))
    return free, expired_before, group_id


def next_other(connection: sqlite3.Connection) -> int:
    """Return the number of the next body that is not a message's. Raises StoreError."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'bodies'").fetchone()
    return _free(connection, OTHERS, (row[0] if row else 0) + 1, 1)


def _free(connection: sqlite3.Connection, group_id: bytes, last: int, count: int) -> int:
    """Return the last of ``count`` numbers; those of the next block if one of them was given and erased before.

    An older copy of the database, put back, gives numbers again. On the event loop nothing is looked up: what was
    erased has no key at hand there.
    """
    keys = open_keys(connection)
    if of_store(connection).is_on_event_loop:
        return last
    try:
        while not keys.are_free(group_id, range(last - count + 1, last + 1)):
            last = (((last >> tree.HEIGHT) + 1) << tree.HEIGHT) - 1 + count
    except KeyFileError as error:
        raise StoreError(str(error)) from error
    return last


def encrypted(
    connection: sqlite3.Connection, placed: Sequence[tuple[bytes, int]], bodies: Sequence[bytes]
) -> Sequence[bytes]:
    """Return new bodies as they are stored. ``placed``: ids of groups, or OTHERS, and numbers.

    What their keys need is on the disk then. Raises StoreError, and NotCachedError where it would have to wait.
    """
    opened_keys = open_keys(connection)
    keys = opened_keys.at_hand(placed)
    if keys is None:
        if of_store(connection).is_on_event_loop:
            raise NotCachedError
        keys = []
        try:
            drawn = opened_keys.of_new(placed)
        except KeyFileError as error:
            cause = error.__cause__
            raise store_error(_path(connection), cause if isinstance(cause, OSError) else error) from error
        note_serial(connection, opened_keys.serial)  # an older key file lacks what was drawn
        for key, (group_id, each) in zip(drawn, placed, strict=True):
            if key is None:
                raise StoreError(f"body {each} of {group_id.hex()} has no key")
            keys.append(key)
    return cipher.encrypt_all(keys, placed, bodies)


def decrypted(
    connection: sqlite3.Connection, group_id: bytes, numbers: Sequence[int], stored: Sequence[bytes]
) -> list[bytes | None]:
    """Return bodies of a group's messages, or of OTHERS; None where one was erased meanwhile, so that its key is lost.

    Raises StoreError if one is not as it was stored, or if the key file cannot be read.
    """
    try:
        return opened(open_keys(connection), group_id, numbers, stored)
    except (AlteredError, KeyFileError) as error:
        raise StoreError(str(error)) from error


def opened(
    keys: KeyStore | None, group_id: bytes, numbers: Sequence[int], stored: Sequence[bytes]
) -> list[bytes | None]:
    """Do as ``decrypted`` for what the archive has, after it was read there. Raises AlteredError and KeyFileError."""
    if keys is None:
        raise KeyFileError(f"the keys of group {group_id.hex()} are not open here")
    return cipher.decrypt_all(keys.keys(group_id, numbers), group_id, numbers, stored)


def open_keys(connection: sqlite3.Connection) -> KeyStore:
    """Return the keys of a connection's database. Raises StoreError: they were not opened for this connection."""
    keys = of_store(connection).keys
    if keys is None:
        raise StoreError(f"{_path(connection)}: its keys are not open here")
    return keys


def _path(connection: sqlite3.Connection) -> Path:
    return Path(connection.execute("PRAGMA database_list").fetchone()[2])
