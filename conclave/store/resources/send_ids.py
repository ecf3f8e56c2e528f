"""Send ids: client-generated ids of messages, used to recognise a repeated send after a lost response."""

import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

from conclave.store import bodies
from conclave.store.engine.sqlite import insert_many

KEPT_SECONDS = 86_400
"""A send id is kept for at least a day: until the next housekeeping run after that."""

PRUNE_BATCH = 256
"""A step deletes at most 256 ids."""

ROW_BYTES = 192
"""The disk space claimed for a row, which takes about 150 bytes with its index."""


class SendKey(NamedTuple):
    """The key of a sent message. A sender may use an id only once in a group.

    It does not depend on the membership: a user who was removed and is back may repeat the send.
    """

    group_key: int
    user_id: bytes
    send_id: bytes


def find(connection: sqlite3.Connection, key: SendKey) -> int | None:
    """Return the number of the message, even if the message has been erased; None if it was not sent before."""
    row = connection.execute(
        "SELECT sequence_num FROM send_ids WHERE user_id = :user_id AND group_key = :group_key AND send_id = :send_id",
        key._asdict(),
    ).fetchone()
    return row and int(row[0])


def remember(connection: sqlite3.Connection, numbers: Mapping[SendKey, int], now: int) -> None:
    """Store the numbers of messages, in the transaction that stores the messages. Raises StoreFullError."""
    bodies.claim_room(connection, len(numbers) * ROW_BYTES)
    rows = [(*key, number, now) for key, number in numbers.items()]
    insert_many(connection, "INSERT INTO send_ids (group_key, user_id, send_id, sequence_num, sent_at)", rows)


def prune(connection: sqlite3.Connection, before: int) -> bool:
    """Delete at most PRUNE_BATCH ids older than the Unix second ``before``; return whether more may be left.

    It may be used as a Step of a cleanup run. Times ascend with the keys, so only the first rows are read.
    """
    deleted_count = connection.execute(
        "DELETE FROM send_ids WHERE sent_at < ? AND send_key IN"
        " (SELECT send_key FROM send_ids ORDER BY send_key LIMIT ?)",
        (before, PRUNE_BATCH),
    ).rowcount
    return deleted_count == PRUNE_BATCH
