"""The bodies of messages at rest: each is encrypted under its own key, where the store has keys.

Which are is told by their numbers: those above the group's ``keyed_after``. What was stored before is taken over by
cleanup, which then lowers it. Until then it is told in the hot store by the segment in which a body lies
(``plain_segments``), and in the archive by trying: only what was encrypted under a key opens with it.
"""

import os
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from conclave.keys import cipher, tree
from conclave.keys.cipher import AlteredError
from conclave.keys.file import KeyFileError
from conclave.keys.store import LAST_NUMBER, KeyStore
from conclave.store.engine.connection import of_store
from conclave.store.engine.faults import StoreError, store_error
from conclave.store.engine.group_commit import NotCachedError
from conclave.store.engine.sqlite import places

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
    connection: sqlite3.Connection,
    group_id: bytes,
    keyed_after: int,
    placed: Sequence[tuple[int, int]],
    stored: Sequence[bytes],
) -> list[bytes | None]:
    """Return the bodies of a group's messages; None where one was erased meanwhile, so that its key is lost.

    ``placed``: their numbers, and the ids of their bodies in the hot store. Raises StoreError if one is not as it was
    stored, or if the key file cannot be read.
    """
    numbers = [number for number, _ in placed]
    try:
        return _opened(of_store(connection).keys, group_id, numbers, stored, _plain(connection, keyed_after, placed))
    except (AlteredError, KeyFileError) as error:
        raise StoreError(str(error)) from error


def opened(
    keys: KeyStore | None, group_id: bytes, keyed_after: int, numbers: Sequence[int], stored: Sequence[bytes]
) -> list[bytes | None]:
    """Do as ``decrypted`` for what the archive has, after it was read there. Raises AlteredError and KeyFileError."""
    old = [place for place, number in enumerate(numbers) if number <= keyed_after]
    if not old or keys is None:
        return _opened(keys, group_id, numbers, stored, {numbers[place] for place in old})
    # Without any key in its block it was not taken over; with others there and none of its own, it was erased since.
    begun = keys.have_begun(group_id, [numbers[place] for place in old])
    tried = {numbers[place]: stored[place] for place, is_begun in zip(old, begun, strict=True) if is_begun}
    plain = {numbers[place] for place in old}.difference(tried)
    for number, key in zip(tried, keys.keys(group_id, list(tried)), strict=True):
        if key and not _opens(key, group_id, number, tried[number]):
            plain.add(number)
    return _opened(keys, group_id, numbers, stored, plain)


def plain_segments(connection: sqlite3.Connection) -> int | None:
    """Return up to which segment messages may lie as they came; None: the database has no keys."""
    row = connection.execute("SELECT plain_segments FROM key_state").fetchone()
    return row[0] if row else None


def carried(connection: sqlite3.Connection, many: Mapping[int, bytes]) -> Mapping[int, bytes]:
    """Return bodies of one segment, by their ids, as they are stored in another: messages are under keys then.

    The connection has keys, unless no message of the segment may lie as it came. Raises StoreError.
    """
    keys, last = of_store(connection).keys, plain_segments(connection)
    if keys is None or last is None or next(iter(many)) >> 32 > last:
        return many
    rows = connection.execute(
        "SELECT message_id, sequence_num, ifnull(groups.group_id, tombstones.group_id) FROM messages"
        " LEFT JOIN groups USING (group_key) LEFT JOIN tombstones USING (group_key)"
        f" WHERE message_id IN ({places(many)}) AND sequence_num <= ifnull(groups.keyed_after, tombstones.keyed_after)",
        [*many],
    ).fetchall()
    try:
        drawn = keys.of_new([(group_id, number) for _, number, group_id in rows])
    except KeyFileError as error:
        raise StoreError(str(error)) from error
    return {
        **many,
        **{
            body_id: _put_under(key, group_id, number, many[body_id])
            for key, (body_id, number, group_id) in zip(drawn, rows, strict=True)
        },
    }


def taken_over(keys: KeyStore, group_id: bytes, numbers: Sequence[int], stored: Sequence[bytes]) -> list[bytes]:
    """Return messages of the archive under their keys: as they are, or encrypted. Raises KeyFileError."""
    drawn = keys.of_new([(group_id, number) for number in numbers])
    return [
        body if key and _opens(key, group_id, number, body) else _put_under(key, group_id, number, body)
        for key, number, body in zip(drawn, numbers, stored, strict=True)
    ]


def _put_under(key: bytes | None, group_id: bytes, number: int, body: bytes) -> bytes:
    """Encrypt a message that is there already.

    One whose key is lost was erased once, and came back with a file that somebody put in the place of another: nobody
    keeps the key under which it is put.
    """
    return cipher.encrypt(key or os.urandom(tree.SECRET_BYTES), group_id, number, body)


def _plain(connection: sqlite3.Connection, keyed_after: int, placed: Sequence[tuple[int, int]]) -> Collection[int]:
    """Return the numbers of messages of the hot store that lie as they came."""
    old = [each for each in placed if each[0] <= keyed_after]
    if not old:
        return ()
    last = plain_segments(connection)
    return {number for number, body_id in old if last is None or body_id >> 32 <= last}


def _opened(
    keys: KeyStore | None, group_id: bytes, numbers: Sequence[int], stored: Sequence[bytes], plain: Collection[int]
) -> list[bytes | None]:
    """Decrypt messages, but for those in ``plain``."""
    keyed = [each for each in numbers if each not in plain] if plain else numbers
    if not keyed:
        return list(stored)
    if keys is None:
        raise KeyFileError(f"the messages of group {group_id.hex()} are under keys, which are not open here")
    if not plain:
        return cipher.decrypt_all(keys.keys(group_id, numbers), group_id, numbers, stored)
    lies = [body for number, body in zip(numbers, stored, strict=True) if number not in plain]
    found = iter(cipher.decrypt_all(keys.keys(group_id, keyed), group_id, keyed, lies))
    return [body if number in plain else next(found) for number, body in zip(numbers, stored, strict=True)]


def _opens(key: bytes, group_id: bytes, number: int, stored: bytes) -> bool:
    try:
        cipher.decrypt(key, group_id, number, stored)
    except AlteredError:
        return False
    return True


def _path(connection: sqlite3.Connection) -> Path:
    return Path(connection.execute("PRAGMA database_list").fetchone()[2])
