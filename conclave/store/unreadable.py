"""Finds bodies without keys, and removes what refers to them: after a restore, or with an older vault.

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
    return sum(len(dead) for _, dead in _messages(connection, keys))


def remove_all(connection: sqlite3.Connection, keys: KeyLookup) -> int:
    """Remove bodies without keys; return how many were messages'. Call it in a transaction. Raises KeyFileError."""
    found = 0
    for group_key, dead in _messages(connection, keys):
        _erase(connection, group_key, dead)
        found += len(dead)
    _remove_others(connection, keys)
    message_keys.note_unsettled(connection, keys.serial)
    reclaiming.note_unsettled(connection)
    return found


def _messages(connection: sqlite3.Connection, keys: KeyLookup) -> Iterator[tuple[int, list[int]]]:
    """Yield the messages without keys: group key, numbers."""
    for group_key, group_id in connection.execute("SELECT group_key, group_id FROM groups").fetchall():
        query = "SELECT sequence_num FROM messages WHERE group_key = ?"
        rows = [row[0] for row in connection.execute(query, (group_key,))]
        for at in range(0, len(rows), BATCH_MESSAGES):
            some = rows[at : at + BATCH_MESSAGES]
            if dead := [
                each for each, is_alive in zip(some, keys.have_keys(group_id, some), strict=True) if not is_alive
            ]:
                yield group_key, dead


def _erase(connection: sqlite3.Connection, group_key: int, dead: list[int]) -> None:
    connection.executemany(
        "DELETE FROM messages WHERE group_key = ? AND sequence_num = ?", [(group_key, number) for number in dead]
    )
    timers.forget(connection, {group_key: dead})
    bodies.delete_of_messages(connection, [bodies.message_id(group_key, number) for number in dead])


def _remove_others(connection: sqlite3.Connection, keys: KeyLookup) -> None:
    """Remove non-message bodies without keys, and the rows that refer to them."""
    ids = [row[0] for row in connection.execute("SELECT body_id FROM bodies ORDER BY body_id")]
    lives = keys.have_keys(message_keys.OTHERS, ids)
    dead = json.dumps([body_id for body_id, is_alive in zip(ids, lives, strict=True) if not is_alive])
    some = "(SELECT value FROM json_each(?1))"
    for table, columns in bodies.REFERENCES:
        condition = " OR ".join(f"{column} IN {some}" for column in columns)
        connection.execute(f"DELETE FROM {table} WHERE {condition}", (dead,))
    connection.execute(f"UPDATE groups SET group_info_body = NULL WHERE group_info_body IN {some}", (dead,))
    connection.execute(f"DELETE FROM bodies WHERE body_id IN {some}", (dead,))
