"""Finds bodies without keys, and removes them and the rows that refer to them: after a restore, or with an older vault.

In a restored database these are the bodies that were erased after the backup was made.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Protocol

from conclave.store import bodies, message_keys
from conclave.store.archive import reclaiming
from conclave.store.resources import timers

BATCH_MESSAGES = 1000
"""Messages are checked in batches of 1,000."""


class KeyLookup(Protocol):
    """A KeyStore, or the Inspection of a key file."""

    @property
    def serial(self) -> int:
        """The number of the newest known change."""

    def have_keys(self, group_id: bytes, numbers: Sequence[int]) -> list[bool]:
        """Return for each number of a group whether it has a key."""


def count(connection: sqlite3.Connection, keys: KeyLookup) -> int:
    """Return how many messages of the database have no key. Raises KeyFileError."""
    return sum(len(numbers) for _, numbers in _messages(connection, keys))


def remove_all(connection: sqlite3.Connection, keys: KeyLookup) -> int:
    """Remove bodies without keys; return the number of messages. Call it in a transaction. Raises KeyFileError."""
    total = 0
    for group_key, numbers in _messages(connection, keys):
        _erase(connection, group_key, numbers)
        total += len(numbers)
    _remove_others(connection, keys)
    message_keys.note_unsettled(connection, keys.serial)
    reclaiming.note_unsettled(connection)
    return total


def _messages(connection: sqlite3.Connection, keys: KeyLookup) -> Iterator[tuple[int, list[int]]]:
    """Yield the messages without keys: group key, numbers."""
    for group_key, group_id in connection.execute("SELECT group_key, group_id FROM groups").fetchall():
        query = "SELECT sequence_num FROM messages WHERE group_key = ?"
        rows = [row[0] for row in connection.execute(query, (group_key,))]
        for begin in range(0, len(rows), BATCH_MESSAGES):
            batch = rows[begin : begin + BATCH_MESSAGES]
            if keyless := [
                each for each, has_key in zip(batch, keys.have_keys(group_id, batch), strict=True) if not has_key
            ]:
                yield group_key, keyless


def _erase(connection: sqlite3.Connection, group_key: int, numbers: list[int]) -> None:
    connection.executemany(
        "DELETE FROM messages WHERE group_key = ? AND sequence_num = ?", [(group_key, number) for number in numbers]
    )
    timers.forget(connection, {group_key: numbers})
    bodies.delete_of_messages(connection, [bodies.message_id(group_key, number) for number in numbers])


def _remove_others(connection: sqlite3.Connection, keys: KeyLookup) -> None:
    """Remove non-message bodies without keys, and the rows that refer to them."""
    ids = [row[0] for row in connection.execute("SELECT body_id FROM bodies ORDER BY body_id")]
    has_keys = keys.have_keys(message_keys.OTHERS, ids)
    keyless_ids = json.dumps([body_id for body_id, has_key in zip(ids, has_keys, strict=True) if not has_key])
    keyless_set = "(SELECT value FROM json_each(?1))"
    for table, columns in bodies.REFERENCES:
        condition = " OR ".join(f"{column} IN {keyless_set}" for column in columns)
        connection.execute(f"DELETE FROM {table} WHERE {condition}", (keyless_ids,))
    connection.execute(
        f"UPDATE groups SET group_info_body = NULL WHERE group_info_body IN {keyless_set}", (keyless_ids,)
    )
    connection.execute(f"DELETE FROM bodies WHERE body_id IN {keyless_set}", (keyless_ids,))
