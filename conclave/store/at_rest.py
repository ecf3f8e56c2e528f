"""The bodies of messages at rest: each is encrypted under its own key, where the store has keys.

What a group's messages were stored as is told by their numbers: those up to ``keyed_after`` lie as they came.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from conclave.keys import cipher, tree
from conclave.keys.cipher import AlteredError
from conclave.keys.file import KeyFileError
from conclave.keys.store import LAST_NUMBER, KeyStore
from conclave.store.engine.connection import of_store
from conclave.store.engine.faults import StoreError, store_error
from conclave.store.engine.group_commit import NotCachedError

NOT_KEYED = LAST_NUMBER
"""``keyed_after`` of a group in which no message is under a key."""


def number(connection: sqlite3.Connection, group_key: int, count: int) -> tuple[int, int, bytes]:
    """Give the next ``count`` numbers of a group. Return the last one, the group's ``expired_before``, and its id.

    From the first number that is given with keys on, the messages of the group are under keys. Raises StoreError.
    """
    store = of_store(connection)
    keyed = ", keyed_after = min(keyed_after, last_seq)" if store.keys else ""
    last, expired_before, group_id, keyed_after = connection.execute(
        f"UPDATE groups SET last_seq = last_seq + ?{keyed} WHERE group_key = ?"
        " RETURNING last_seq, expired_before, group_id, keyed_after",
        (count, group_key),
    ).fetchone()
    if store.keys is None:
        if keyed_after != NOT_KEYED:
            raise StoreError(f"the messages of group {group_id.hex()} are under keys, which are not open here")
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
    keys: Sequence[bytes | None] | None = store.keys.at_hand(placed)
    if keys is None:
        if store.is_on_event_loop:
            raise NotCachedError
        try:
            keys = store.keys.of_new(placed)
        except KeyFileError as error:
            cause = error.__cause__
            raise store_error(_path(connection), cause if isinstance(cause, OSError) else error) from error
    found = []
    for key, (group_id, each), body in zip(keys, placed, bodies, strict=True):
        if key is None:
            raise StoreError(f"message {each} of group {group_id.hex()} has no key")
        found.append(cipher.encrypt(key, group_id, each, body))
    return found


def decrypted(
    connection: sqlite3.Connection,
    group_id: bytes,
    keyed_after: int,
    numbers: Sequence[int],
    stored: Sequence[bytes],
) -> list[bytes | None]:
    """Return the bodies of a group's messages; None where one was erased meanwhile, so that its key is lost.

    Raises StoreError if one is not as it was stored, or if the key file cannot be read.
    """
    try:
        return opened(of_store(connection).keys, group_id, keyed_after, numbers, stored)
    except (AlteredError, KeyFileError) as error:
        raise StoreError(str(error)) from error


def opened(
    keys: KeyStore | None, group_id: bytes, keyed_after: int, numbers: Sequence[int], stored: Sequence[bytes]
) -> list[bytes | None]:
    """Do as ``decrypted``, with the keys given. Raises AlteredError and KeyFileError."""
    keyed = [each for each in numbers if each > keyed_after]
    if not keyed:
        return list(stored)
    if keys is None:
        raise KeyFileError(f"the messages of group {group_id.hex()} are under keys, which are not open here")
    found = dict(zip(keyed, keys.keys(group_id, keyed), strict=True))
    return [
        body if each <= keyed_after else cipher.decrypt(key, group_id, each, body) if (key := found[each]) else None
        for each, body in zip(numbers, stored, strict=True)
    ]


def _path(connection: sqlite3.Connection) -> Path:
    return Path(connection.execute("PRAGMA database_list").fetchone()[2])
