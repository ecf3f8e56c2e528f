"""Tracks which messages the user has seen, and up to which number everything counts as read."""

import sqlite3
from collections.abc import Iterable
from uuid import UUID

_UNSEEN = (
    "FROM messages JOIN groups USING (group_key) WHERE group_id = ?"
    " AND sequence_num > read_up_to AND is_seen = 0 AND sender_id != ? AND (gone_at IS NULL OR gone_at > ?)"
)


def unread(connection: sqlite3.Connection, group_id: UUID, user_id: UUID, now: int, limit: int) -> list[int]:
    """Return the numbers of the first ``limit`` messages of others that the user has not seen, ascending."""
    rows = connection.execute(
        f"SELECT sequence_num {_UNSEEN} ORDER BY sequence_num LIMIT ?", (group_id.bytes, user_id.bytes, now, limit)
    )
    return [row[0] for row in rows]


def mark_seen(connection: sqlite3.Connection, group_key: int, numbers: Iterable[int]) -> None:
    """Record that messages were shown on the screen."""
    connection.executemany(
        "UPDATE messages SET is_seen = 1 WHERE group_key = ? AND sequence_num = ? AND is_seen = 0",
        ((group_key, each) for each in numbers),
    )


def mark_rest_seen(connection: sqlite3.Connection, group_key: int) -> None:
    """Mark all unread messages as seen, except self-destructing ones, which must be shown first."""
    connection.execute(
        "UPDATE messages SET is_seen = 1 WHERE group_key = ?1 AND is_seen = 0 AND self_destruct_seconds = 0"
        " AND sequence_num > (SELECT read_up_to FROM groups WHERE group_key = ?1)",
        (group_key,),
    )


def read_up_to(connection: sqlite3.Connection, group_id: UUID, user_id: UUID, confirmed: int) -> int:
    """Return the number of the last message before the first unseen one.

    ``confirmed``: skip messages that have expired at this time. Messages that only an unconfirmed time hides may
    reappear unseen.
    """
    first_unseen = unread(connection, group_id, user_id, confirmed, 1)
    row = connection.execute(
        "SELECT max(sequence_num) FROM messages JOIN groups USING (group_key) WHERE group_id = ?1"
        " AND (?2 IS NULL OR sequence_num < ?2)",
        (group_id.bytes, first_unseen[0] if first_unseen else None),
    ).fetchone()
    return row[0] or 0


def mark_read(connection: sqlite3.Connection, group_key: int, up_to: int, earliest: int) -> int:
    """Mark everything up to a number as read; return the former number.

    Timers of newly read messages start at ``earliest``, the earliest possible current time.
    """
    row = connection.execute("SELECT read_up_to FROM groups WHERE group_key = ?", (group_key,)).fetchone()
    former = int(row[0])
    if former < up_to:
        # Only newly read messages: there may be 100,000 before them, and this runs for each message.
        connection.execute(
            "UPDATE messages SET redact_at = ? + self_destruct_seconds WHERE group_key = ? AND sequence_num > ?"
            " AND sequence_num <= ? AND self_destruct_seconds > 0 AND redact_at IS NULL",
            (earliest, group_key, former, up_to),
        )
        connection.execute("UPDATE groups SET read_up_to = ? WHERE group_key = ?", (up_to, group_key))
    return former
