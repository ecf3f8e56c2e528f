"""Computes when messages expire, and erases them."""

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
"""Sets the second at which messages expire, according to their timer or their group's policy; NULL: never.

With delete-after-fetch, messages keep their former lifetime. If a message arrived before its time of creation, the
server's clock was wrong when it stored the message: the time of arrival counts.
"""


class ErasedMessage(NamedTuple):
    """An erased message."""

    group_id: UUID
    sequence_num: int


def erase(connection: sqlite3.Connection, keys: Sequence[int]) -> list[ErasedMessage]:
    """Erase the messages with the given keys; return them."""
    erased, locations = [], []
    for key in keys:
        row = connection.execute(
            "DELETE FROM messages WHERE message_key = ?"
            " RETURNING (SELECT group_id FROM groups WHERE groups.group_key = messages.group_key),"
            " sequence_num, segment, body_id",
            (key,),
        ).fetchone()
        erased.append(ErasedMessage(UUID(bytes=row[0]), row[1]))
        locations.append((row[2], row[3]))
    bodies.erase(connection, locations)
    return erased


def compact(connection: sqlite3.Connection, segment: int) -> None:
    """Copy the remaining texts of a segment to the newest one, and drop it."""
    rows = connection.execute(
        "SELECT message_key, body_id FROM messages WHERE segment = ? ORDER BY body_id", (segment,)
    ).fetchall()
    for key, body_id in rows:
        location = bodies.put(connection, bodies.get(connection, segment, body_id))
        connection.execute("UPDATE messages SET segment = ?, body_id = ? WHERE message_key = ?", (*location, key))
    bodies.drop(connection, segment)
