"""Stores pages of messages, reads messages, and tracks which numbers were fetched.

While the server's clock is in doubt, a page may lack messages that reappear later. So everything from the first such
page on is fetched again once the clock is right. Until then the table ``had`` stores the numbers received since. So
no message is decoded, stored or reported twice, even if it has been erased since.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from conclave.client.events import Message
from conclave.client.history import bodies

_COLUMNS = (
    "group_id, sequence_num, sender_id, is_readable, created_at, self_destruct_seconds, gone_at, segment, body_id"
)


@dataclass(frozen=True)
class IncomingMessage:
    """A message to store."""

    sequence_num: int
    sender_id: UUID
    content: bytes | None = field(repr=False)
    """The text in UTF-8; None if it cannot be decrypted."""
    created_at: int
    self_destruct_seconds: int = 0
    is_own: bool = False
    """Whether the user sent the message, so that it counts as read."""

    def redact_at(self, now: int) -> int | None:
        """Return the second at which a running timer ends; None if no timer runs. ``now``: the time of arrival."""
        has_timer = self.is_own and self.self_destruct_seconds
        return min(self.created_at, now) + self.self_destruct_seconds if has_timer else None


class TimeBounds(NamedTuple):
    """The latest possible, the earliest possible, and the confirmed time, in Unix seconds."""

    now: int
    earliest: int
    confirmed: int


class _FetchPosition(NamedTuple):
    """How far a group was fetched. ``again``: the number after which to fetch again; None: complete."""

    fetched: int
    again: int | None


def ensure_group(connection: sqlite3.Connection, group_id: UUID) -> tuple[int, int]:
    """Return a group's key and effective expiry; insert the group if it is new."""
    connection.execute("INSERT OR IGNORE INTO groups (group_id) VALUES (?)", (group_id.bytes,))
    row = connection.execute("SELECT group_key, expiry FROM groups WHERE group_id = ?", (group_id.bytes,)).fetchone()
    return row[0], row[1]


def refetch_after(connection: sqlite3.Connection, group_id: UUID) -> int | None:
    """Return the number after which to fetch a group again once the server's clock is right; None: complete."""
    row = connection.execute("SELECT again_after FROM groups WHERE group_id = ?", (group_id.bytes,)).fetchone()
    return int(row[0]) if row and row[0] is not None else None


def not_fetched(connection: sqlite3.Connection, group_id: UUID, numbers: Sequence[int]) -> set[int]:
    """Return the numbers of a page that were not received before."""
    row = connection.execute(
        "SELECT group_key, fetched_up_to, again_after FROM groups WHERE group_id = ?", (group_id.bytes,)
    ).fetchone()
    if not row or not numbers:
        return set(numbers)
    received = connection.execute(
        "SELECT sequence_num FROM had WHERE group_key = ? AND sequence_num BETWEEN ? AND ?",
        (row[0], numbers[0], numbers[-1]),
    )
    start = row[1] if row[2] is None else row[2]
    return {each for each in numbers if each > start} - {each[0] for each in received}


def record_page(
    connection: sqlite3.Connection, group_key: int, after: int, up_to: int, numbers: Sequence[int], *, in_doubt: bool
) -> int | None:
    """Record a fetched page; return the number up to which it was fetched before.

    Returns None and records nothing if ``after`` is the position neither of the first nor of the repeated fetch.
    """
    former = _FetchPosition(
        *connection.execute(
            "SELECT fetched_up_to, again_after FROM groups WHERE group_key = ?", (group_key,)
        ).fetchone()
    )
    if after not in former:
        return None
    fetched, again = max(former.fetched, up_to), former.again
    if again is None and in_doubt and len(numbers) < up_to - after:
        again = after
    elif again == after and not in_doubt:
        again = up_to if up_to < fetched else None
        # The server ignored read receipts beyond the missing messages: send them again.
        connection.execute("UPDATE groups SET told_up_to = min(told_up_to, ?) WHERE group_key = ?", (after, group_key))
    connection.execute(
        "UPDATE groups SET fetched_up_to = ?, again_after = ? WHERE group_key = ?", (fetched, again, group_key)
    )
    if again is not None:
        rows = [(group_key, each) for each in numbers if each > again]
        connection.executemany("INSERT OR IGNORE INTO had VALUES (?, ?)", rows)
    connection.execute(
        "DELETE FROM had WHERE group_key = ? AND sequence_num <= ?", (group_key, fetched if again is None else again)
    )
    return former.fetched


def store(
    connection: sqlite3.Connection, group_key: int, fetched: int, incoming: Sequence[IncomingMessage], times: TimeBounds
) -> None:
    """Store messages, except expired ones. Numbers up to ``fetched`` are marked as late."""
    expiry, read_up_to = connection.execute(
        "SELECT expiry, read_up_to FROM groups WHERE group_key = ?", (group_key,)
    ).fetchone()
    for each in incoming:
        if expiry > 0 and min(each.created_at, times.now) + expiry < times.confirmed:
            continue
        redact_at = each.redact_at(times.now)
        if redact_at is None and each.self_destruct_seconds and each.sequence_num <= read_up_to:
            redact_at = times.earliest + each.self_destruct_seconds  # the read receipt is sent again
        segment, body_id = bodies.put(connection, each.content or b"")
        connection.execute(
            "INSERT INTO messages (group_key, sequence_num, sender_id, is_readable, created_at, arrived_at,"
            " self_destruct_seconds, redact_at, segment, body_id, is_late) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(group_key, each.sequence_num, each.sender_id.bytes, each.content is not None),
                *(each.created_at, times.now, each.self_destruct_seconds, redact_at, segment, body_id),
                each.sequence_num <= fetched,
            ),
        )


def read(connection: sqlite3.Connection, condition: str, group_id: UUID, *values: int) -> list[Message]:
    """Return the messages of a group that match an SQL condition. ``values``: its parameters."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM messages JOIN groups USING (group_key) WHERE group_id = ? AND {condition}",
        (group_id.bytes, *values),
    ).fetchall()
    return [_message(connection, row) for row in rows]


def _message(connection: sqlite3.Connection, row: Sequence[object]) -> Message:
    group_id, number, sender_id, is_readable, created_at, seconds, gone_at, segment, body_id = row
    text = bodies.get(connection, segment, body_id).decode(errors="replace") if is_readable else None  # type: ignore[arg-type]  # rows have no types
    return Message(UUID(bytes=group_id), number, UUID(bytes=sender_id), text, created_at, seconds, gone_at)  # type: ignore[arg-type]  # as above
