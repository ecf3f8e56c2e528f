"""What senders call their messages: a message that is sent again after a lost answer is known by its sender's id."""

import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

from conclave.store import bodies
from conclave.store.engine.sqlite import insert_many

KEPT_SECONDS = 86_400
"""An id is remembered for at least a day: until a run that keeps house after that."""

FORGOTTEN_AT_ONCE = 256
"""At most 256 ids are forgotten in a step."""

ID_ROOM = 192
"""An id takes about 150 bytes with its index."""


class SendKey(NamedTuple):
    """A message by its sender's id for it: one sender may use an id once in a group.

    The sender counts, not the membership: a user who was removed and is back may still ask again.
    """

    group_key: int
    user_id: bytes
    send_id: bytes


def find(connection: sqlite3.Connection, sent: SendKey) -> int | None:
    """Return the number that the message got, even if it is erased by now; None if it was not sent before."""
    row = connection.execute(
        "SELECT sequence_num FROM send_ids WHERE user_id = :user_id AND group_key = :group_key AND send_id = :send_id",
        sent._asdict(),
    ).fetchone()
    return row and int(row[0])


def remember(connection: sqlite3.Connection, numbers: Mapping[SendKey, int], now: int) -> None:
    """Remember the numbers that messages got, in the transaction that stores them. Raises StoreFullError."""
    bodies.take_room(connection, len(numbers) * ID_ROOM)
    rows = [(*sent, number, now) for sent, number in numbers.items()]
    insert_many(connection, "INSERT INTO send_ids (group_key, user_id, send_id, sequence_num, sent_at)", rows)


def prune(connection: sqlite3.Connection, before: int) -> bool:
    """Forget ids from before the Unix second ``before``, at most FORGOTTEN_AT_ONCE; tell whether more may be left.

    It may be used as a Step of a cleanup run. Times rise with the keys, so only the first ones are looked at.
    """
    deleted = connection.execute(
        "DELETE FROM send_ids WHERE sent_at < ? AND send_key IN"
        " (SELECT send_key FROM send_ids ORDER BY send_key LIMIT ?)",
        (before, FORGOTTEN_AT_ONCE),
    ).rowcount
    return deleted == FORGOTTEN_AT_ONCE
