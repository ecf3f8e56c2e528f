"""Bodies, the data that only clients can read. Each is stored encrypted under its own key.

To erase a body, its row is deleted and its key is recorded. The next cleanup run destroys the key. Then only ciphertext
is left in files and copies. Message bodies are numbered by group, all others by row, under the pseudo group OTHERS.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson

from conclave.keys import cipher, tree
from conclave.keys.cipher import OVERHEAD_BYTES, AlteredError
from conclave.keys.file import KeyFileError
from conclave.keys.store import KeyStore
from conclave.store import message_keys
from conclave.store.engine.connection import of_store
from conclave.store.engine.faults import StoreError, StoreFullError, free_bytes, store_error
from conclave.store.engine.group_commit import NotCachedError
from conclave.store.engine.sqlite import insert_many, placeholders, without_zeroing
from conclave.store.message_keys import OTHERS, note_serial


def allocate_numbers(connection: sqlite3.Connection, group_key: int, count: int) -> tuple[int, int, bytes]:
    """Assign the next ``count`` numbers of a group. Return the last one, the group's ``expired_before``, and its id.

    Raises StoreError.
    """
    last, expired_before, group_id = connection.execute(
        "UPDATE groups SET last_seq = last_seq + ? WHERE group_key = ? RETURNING last_seq, expired_before, group_id",
        (count, group_key),
    ).fetchone()
    last_free = _skip_erased(connection, group_id, last, count)
    if last_free != last:
        connection.execute("UPDATE groups SET last_seq = ? WHERE group_key = ?", (last_free, group_key))
    return last_free, expired_before, group_id


def next_body_id(connection: sqlite3.Connection) -> int:
    """Return the id of the next non-message body. Raises StoreError."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'bodies'").fetchone()
    return _skip_erased(connection, OTHERS, (row[0] if row else 0) + 1, 1)


def _skip_erased(connection: sqlite3.Connection, group_id: bytes, last: int, count: int) -> int:
    """Return the last of ``count`` numbers, moved to the next block if one of them was used and erased before.

    A restored older copy of the database assigns numbers again. Not checked on the event loop: erased numbers
    have no cached key, so ``encrypt`` fails there.
    """
    key_store = open_keys(connection)
    if of_store(connection).is_on_event_loop:
        return last
    try:
        while not key_store.are_unused(group_id, range(last - count + 1, last + 1)):
            last = (((last >> tree.HEIGHT) + 1) << tree.HEIGHT) - 1 + count
    except KeyFileError as error:
        raise StoreError(str(error)) from error
    return last


def encrypt(
    connection: sqlite3.Connection, locations: Sequence[tuple[bytes, int]], bodies: Sequence[bytes]
) -> Sequence[bytes]:
    """Encrypt new bodies. ``locations``: group ids, or OTHERS, and numbers.

    Their keys are durable when this returns. Raises StoreError, and on the event loop NotCachedError instead of
    waiting.
    """
    key_store = open_keys(connection)
    keys = key_store.cached_keys(locations)
    if keys is None:
        if of_store(connection).is_on_event_loop:
            raise NotCachedError
        keys = []
        try:
            new_keys = key_store.new_keys(locations)
        except KeyFileError as error:
            cause = error.__cause__
            raise store_error(_path(connection), cause if isinstance(cause, OSError) else error) from error
        note_serial(connection, key_store.serial)  # so that an older key file, without these keys, is rejected
        for key, (group_id, each) in zip(new_keys, locations, strict=True):
            if key is None:
                raise StoreError(f"body {each} of {group_id.hex()} has no key")
            keys.append(key)
    return cipher.encrypt_all(keys, locations, bodies)


def decrypt(
    connection: sqlite3.Connection, group_id: bytes, numbers: Sequence[int], ciphertexts: Sequence[bytes]
) -> list[bytes | None]:
    """Return the decrypted bodies of a group's messages, or of OTHERS; None for each erased body.

    Raises StoreError if a body was altered, or the key file cannot be read.
    """
    try:
        return decrypt_archived(open_keys(connection), group_id, numbers, ciphertexts)
    except (AlteredError, KeyFileError) as error:
        raise StoreError(str(error)) from error


def decrypt_archived(
    keys: KeyStore | None, group_id: bytes, numbers: Sequence[int], ciphertexts: Sequence[bytes]
) -> list[bytes | None]:
    """Decrypt bodies that were read from the archive, see ``decrypt``. Raises AlteredError and KeyFileError."""
    if keys is None:
        raise KeyFileError(f"the keys of group {group_id.hex()} are not open here")
    return cipher.decrypt_all(keys.keys(group_id, numbers), group_id, numbers, ciphertexts)


def open_keys(connection: sqlite3.Connection) -> KeyStore:
    """Return the keys of a connection's database. Raises StoreError if they were not opened for this connection."""
    keys = of_store(connection).keys
    if keys is None:
        raise StoreError(f"{_path(connection)}: its keys are not open here")
    return keys


NUMBER_BITS = 40
"""The id of a message is its group's key followed by its 40-bit number, whose 8 highest bits count restores."""

LAST_NUMBER = (1 << NUMBER_BITS) - 1
"""The greatest number that a message can have."""

MAX_GROUP_KEY = (1 << 63 - NUMBER_BITS) - 1
"""The greatest key that a group can have. Keys of deleted groups are not used again."""

REFERENCES = (
    ("invites", ("commit_body", "welcome_body", "group_info_body")),
    ("welcomes", ("welcome_body",)),
    ("key_packages", ("package_body",)),
)
"""Tables whose rows are deleted with their bodies, and the columns that refer to bodies. Groups refer to bodies too."""

EXTRA_ROOM_BYTES = 64 * 1024
"""On a full disk the commit of a leave, a removal or a ban may still take 64 KiB."""

MIN_FREE_BYTES = 2 * 1024 * 1024
"""EXTRA_ROOM_BYTES are not available while less than 2 MiB of the disk are free.

The rest is for changes without a body: a user who joins and leaves repeatedly must not exhaust it.
"""

SIZE = f"length(body) - {OVERHEAD_BYTES}"
"""SQL expression for the size of a body in bytes."""

PAGES_PER_STEP = 64
"""A step returns at most 64 pages to the file system."""

FREE_DIVISOR = 5
"""Pages are returned while more than a fifth of the file is free. The rest is kept for reuse."""


def message_id(group_key: int, number: int) -> int:
    """Return the id of a message."""
    return group_key << NUMBER_BITS | number


def put(connection: sqlite3.Connection, body: bytes) -> int:
    """Store a non-message body and return its id. Raises StoreFullError and StoreError."""
    claim_room(connection, len(body))
    body_id = next_body_id(connection)
    (ciphertext,) = encrypt(connection, [(OTHERS, body_id)], [body])
    connection.execute("INSERT INTO bodies (body_id, body) VALUES (?, ?)", (body_id, ciphertext))
    return body_id


def replace(connection: sqlite3.Connection, body_id: int, body: bytes) -> None:
    """Replace a non-message body, under the same key. Raises the same errors as ``put``."""
    claim_room(connection, len(body))
    (ciphertext,) = encrypt(connection, [(OTHERS, body_id)], [body])
    connection.execute("UPDATE bodies SET body = ? WHERE body_id = ?", (ciphertext, body_id))


def put_messages(connection: sqlite3.Connection, rows: Sequence[tuple[int, bytes]]) -> None:
    """Store the encrypted bodies of messages (at most some hundreds), by their ids. Raises StoreFullError."""
    claim_room(connection, sum(len(body) - OVERHEAD_BYTES for _, body in rows))
    insert_many(connection, "INSERT INTO message_bodies (message_id, body)", rows)


def claim_room(connection: sqlite3.Connection, count: int) -> None:
    """Claim ``count`` bytes of the disk space for client data. Raises StoreFullError if less is available."""
    store = of_store(connection)
    if count > store.room:
        path = _path(connection)
        free_space = free_bytes(path.parent)
        raise StoreFullError(f"{path}: no disk space for client data ({free_space:,} bytes are free)")
    store.room -= count


@contextmanager
def extra_room(connection: sqlite3.Connection) -> Iterator[None]:
    """Let the block store up to EXTRA_ROOM_BYTES more than there is room for.

    Used for commits that remove a member. Without effect while less than MIN_FREE_BYTES are free.
    """
    store = of_store(connection)
    extra = EXTRA_ROOM_BYTES if free_bytes(_path(connection).parent) >= MIN_FREE_BYTES else 0
    store.room += extra
    try:
        yield
    finally:
        store.room = max(0, store.room - extra)


def get_many(connection: sqlite3.Connection, body_ids: Iterable[int]) -> dict[int, bytes]:
    """Return non-message bodies (at most some thousands) by id, without erased ones. Raises StoreError."""
    ids = list(body_ids)
    rows = connection.execute(
        f"SELECT body_id, body FROM bodies WHERE body_id IN ({placeholders(ids)})", ids
    ).fetchall()
    decrypted = decrypt(connection, OTHERS, [row[0] for row in rows], [row[1] for row in rows])
    return {row[0]: body for row, body in zip(rows, decrypted, strict=True) if body is not None}


def get(connection: sqlite3.Connection, body_id: int) -> bytes:
    """Return a non-message body. Raises StoreError."""
    return get_many(connection, [body_id])[body_id]


def sizes(connection: sqlite3.Connection, body_ids: Sequence[int]) -> list[int]:
    """Return the sizes in bytes of non-message bodies."""
    rows = connection.execute(
        f"SELECT body_id, {SIZE} FROM bodies WHERE body_id IN (SELECT value FROM json_each(?))",
        (json.dumps(list(body_ids)),),
    )
    size_by_id = {row[0]: row[1] for row in rows}
    return [size_by_id.get(body_id, 0) for body_id in body_ids]


def of_messages(connection: sqlite3.Connection, message_ids: Sequence[int]) -> list[bytes]:
    """Return the encrypted bodies of messages, in ascending order of their ids.

    SQLite returns them as one row: while the event loop is busy, a thread waits for Python's GIL at each row. So
    their total size must be small, unless there is only one. Raises StoreError if one is missing.
    """
    if not message_ids:
        return []
    if message_ids[-1] - message_ids[0] == len(message_ids) - 1:
        condition, values = "BETWEEN ? AND ?", [message_ids[0], message_ids[-1]]
    else:
        condition, values = f"IN ({placeholders(message_ids)})", list(message_ids)
    keys, lengths, concatenated = connection.execute(
        "SELECT group_concat(message_id), group_concat(length(body)), CAST(group_concat(body, '') AS BLOB)"
        f" FROM message_bodies WHERE message_id {condition}",
        values,
    ).fetchone()
    sizes_in_order = orjson.loads(f"[{lengths or ''}]")
    if len(sizes_in_order) != len(message_ids):
        raise StoreError(f"{_path(connection)}: {len(message_ids) - len(sizes_in_order)} messages have no body")
    if len(concatenated) != sum(sizes_in_order):  # older SQLite truncates the joined value at the first zero byte
        query = f"SELECT body FROM message_bodies WHERE message_id {condition} ORDER BY message_id"
        return [row[0] for row in connection.execute(query, values)]
    bodies_by_id, begin = {}, 0
    for key, size in zip(orjson.loads(f"[{keys}]"), sizes_in_order, strict=True):
        bodies_by_id[key] = concatenated[begin : begin + size]
        begin += size
    return [bodies_by_id[each] for each in message_ids]


def of_message(connection: sqlite3.Connection, group_key: int, group_id: bytes, number: int) -> bytes | None:
    """Return the body of a message; None if its key is destroyed. Raises StoreError."""
    ciphertexts = of_messages(connection, [message_id(group_key, number)])
    return decrypt(connection, group_id, [number], ciphertexts)[0]


def erase(connection: sqlite3.Connection, body_ids: Sequence[int]) -> None:
    """Erase non-message bodies. The caller removes references to them in the same transaction."""
    if not body_ids:
        return
    with without_zeroing(connection):
        connection.execute(
            "DELETE FROM bodies WHERE body_id IN (SELECT value FROM json_each(?))", (json.dumps(list(body_ids)),)
        )
    message_keys.note_erased_others(connection, body_ids)


def delete_of_messages(connection: sqlite3.Connection, message_ids: Sequence[int]) -> None:
    """Delete the bodies of messages. The caller deletes their rows and notes their keys in the same transaction."""
    with without_zeroing(connection):
        connection.execute(
            "DELETE FROM message_bodies WHERE message_id IN (SELECT value FROM json_each(?))",
            (json.dumps(list(message_ids)),),
        )


def return_free_pages(connection: sqlite3.Connection) -> bool:
    """Schedule the return of PAGES_PER_STEP more free pages to the file system: a Step of a run.

    The transaction returns them at its end, see ``sqlite.write_transaction``. Nothing is scheduled if too little of the
    file is free, see FREE_DIVISOR. Return whether more pages are to be returned.
    """
    if not connection.execute("PRAGMA auto_vacuum").fetchone()[0]:
        return False  # the file was recreated by another tool
    free_pages: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    total_pages: int = connection.execute("PRAGMA page_count").fetchone()[0]
    excess = -((total_pages - free_pages * FREE_DIVISOR) // (FREE_DIVISOR - 1))
    if excess <= 0:
        return False
    store = of_store(connection)
    store.pages_to_return = min(excess, store.pages_to_return + PAGES_PER_STEP)
    return store.pages_to_return < excess


def _path(connection: sqlite3.Connection) -> Path:
    """Return the path of the database."""
    return Path(connection.execute("PRAGMA database_list").fetchone()[2])
