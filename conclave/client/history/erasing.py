"""Works out when messages are gone, and erases them."""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from conclave.client.history import bodies

NEVER = 2**63 - 1

SET_GONE_AT = f"""
    UPDATE messages SET gone_at = (
        SELECT nullif(min(ifnull(redact_at, {NEVER}),
            CASE WHEN expiry > 0 THEN min(created_at, arrived_at) + expiry + 1
                 WHEN expiry = 0 THEN min(ifnull(min(created_at, arrived_at) + lifetime + 1, {NEVER}),
                                          ifnull(arrived_at + :keep + 1, {NEVER}))
                 ELSE {NEVER} END), {NEVER})
        FROM groups WHERE groups.group_key = messages.group_key)
"""
"""Works out from which second on messages are gone: by their timer, by their group's policy, or never.

With delete-after-fetch a message that had a lifetime before keeps it, as people were told.

Nothing arrives before it is created: if it says so, the server's clock was wrong when it stored it.
"""


class ErasedMessage(NamedTuple):
    """A message that is gone."""

    group_id: UUID
    sequence_num: int


def erase(connection: sqlite3.Connection, keys: Sequence[int]) -> list[ErasedMessage]:
    """Erase messages."""
    erased, places = [], []
    for key in keys:
        row = connection.execute(
            "DELETE FROM messages WHERE message_key = ?"
            " RETURNING (SELECT group_id FROM groups WHERE groups.group_key = messages.group_key),"
            " sequence_num, segment, body_id",
            (key,),
        ).fetchone()
        erased.append(ErasedMessage(UUID(bytes=row[0]), row[1]))
        places.append((row[2], row[3]))
    bodies.erase(connection, places)
    return erased


def compact(connection: sqlite3.Connection, segment: int) -> None:
    """Copy what is left of a segment to the newest one, and drop it."""
    left = connection.execute(
        "SELECT message_key, body_id FROM messages WHERE segment = ? ORDER BY body_id", (segment,)
    ).fetchall()
    for key, body_id in left:
        place = bodies.put(connection, bodies.get(connection, segment, body_id))
        connection.execute("UPDATE messages SET segment = ?, body_id = ? WHERE message_key = ?", (*place, key))
    bodies.drop(connection, segment)
