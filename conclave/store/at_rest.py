"""The bodies of messages at rest: each is encrypted under its own key, if the database has keys; then all are."""

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


def number(connection: sqlite3.Connection, group_key: int, count: int) -> tuple[int, int, bytes]:
    """Give the next ``count`` numbers of a group. Return the last one, the group's ``expired_before``, and its id.

    Raises StoreError.
    """
    store = of_store(connection)
    last, expired_before, group_id = connection.execute(
        "UPDATE groups SET last_seq = last_seq + ? WHERE group_key = ? RETURNING last_seq, expired_before, group_id",
        (count, group_key),
    ).fetchone()
    if store.keys is None:
        _require_none(connection, group_id)
    elif not store.is_on_event_loop:
        last = _passed(connection, store.keys, group_key, group_id, last, count)
    return last, expired_before, group_id


def _passed(
    connection: sqlite3.Connection, keys: KeyStore, group_key: int, group_id: bytes, last: int, count: int
) -> int:
    """Return the last of ``count`` numbers; those of the next block if one of them was given and erased before."""
    try:
        while not keys.are_free(group_id, range(last - count + 1, last + 1)):
            last = (((last >> tree.HEIGHT) + 1) << tree.HEIGHT) - 1 + count
            connection.execute("UPDATE groups SET last_seq = ? WHERE group_key = ?", (last, group_key))
    except KeyFileError as error:
        raise StoreError(str(error)) from error
    return last


def encrypted(
    connection: sqlite3.Connection, placed: Sequence[tuple[bytes, int]], bodies: Sequence[bytes]
) -> Sequence[bytes]:
    """Return the bodies of new messages as they are stored. ``placed``: ids of groups and numbers.

    What their keys need is on the disk then. Raises StoreError, and NotCachedError where it would have to wait.
    """
    store = of_store(connection)
    if store.keys is None:
        return bodies
    keys = store.keys.at_hand(placed)
    if keys is None:
        if store.is_on_event_loop:
            raise NotCachedError
        keys = []
        try:
            drawn = store.keys.of_new(placed)
        except KeyFileError as error:
            cause = error.__cause__
            raise store_error(_path(connection), cause if isinstance(cause, OSError) else error) from error
        for key, (group_id, each) in zip(drawn, placed, strict=True):
            if key is None:
                raise StoreError(f"message {each} of group {group_id.hex()} has no key")
            keys.append(key)
    return cipher.encrypt_all(keys, placed, bodies)


def decrypted(
    connection: sqlite3.Connection, group_id: bytes, numbers: Sequence[int], stored: Sequence[bytes]
) -> list[bytes | None]:
    """Return the bodies of a group's messages; None where one was erased meanwhile, so that its key is lost.

    Raises StoreError if one is not as it was stored, or if the key file cannot be read.
    """
    keys = of_store(connection).keys
    if keys is None:
        _require_none(connection, group_id)
    try:
        return opened(keys, group_id, numbers, stored)
    except (AlteredError, KeyFileError) as error:
        raise StoreError(str(error)) from error


def opened(
    keys: KeyStore | None, group_id: bytes, numbers: Sequence[int], stored: Sequence[bytes]
) -> list[bytes | None]:
    """Do as ``decrypted`` for what the archive has, after it was read there. Raises AlteredError and KeyFileError."""
    if keys is None:
        return list(stored)
    return cipher.decrypt_all(keys.keys(group_id, numbers), group_id, numbers, stored)


def _require_none(connection: sqlite3.Connection, group_id: bytes) -> None:
    """Raise StoreError if the database has keys: they are not open here."""
    if connection.execute("SELECT 1 FROM key_state").fetchone():
        raise StoreError(f"the messages of group {group_id.hex()} are under keys, which are not open here")


def _path(connection: sqlite3.Connection) -> Path:
    return Path(connection.execute("PRAGMA database_list").fetchone()[2])
