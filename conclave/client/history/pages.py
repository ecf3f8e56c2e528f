"""Stores pages of messages, reads messages, and knows which numbers have not come yet.

While the server's clock is in doubt a page may leave out messages that come back. So what is after the first such page
is fetched again once the server knows the time. Until that is done, the numbers that have come since are kept: what was
here is not decoded, stored and told twice, also if it is gone.
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
    """Its text in UTF-8; None if it cannot be read."""
    created_at: int
    self_destruct_seconds: int = 0
    is_own: bool = False
    """The user sent it, and so has read it by sending."""

    def redact_at(self, now: int) -> int | None:
        """Return the first second at which a timer that runs already has ended; ``now``: when it has arrived."""
        runs = self.is_own and self.self_destruct_seconds
        return min(self.created_at, now) + self.self_destruct_seconds if runs else None


class TimeBounds(NamedTuple):
    """What time it may be: the latest, the earliest, and what has come for sure."""

    now: int
    earliest: int
    confirmed: int


class _FetchPosition(NamedTuple):
    """How far a group was fetched, and after which number to fetch again; None: nothing."""

    fetched: int
    again: int | None


def ensure_group(connection: sqlite3.Connection, group_id: UUID) -> tuple[int, int]:
    """Return a group's key and effective expiry; it is known from here on."""
    connection.execute("INSERT OR IGNORE INTO groups (group_id) VALUES (?)", (group_id.bytes,))
    row = connection.execute("SELECT group_key, expiry FROM groups WHERE group_id = ?", (group_id.bytes,)).fetchone()
    return row[0], row[1]


def refetch_after(connection: sqlite3.Connection, group_id: UUID) -> int | None:
    """Return the number after which a group is to be fetched again once the server knows the time; None: it is not."""
    row = connection.execute("SELECT again_after FROM groups WHERE group_id = ?", (group_id.bytes,)).fetchone()
    return int(row[0]) if row and row[0] is not None else None


def not_fetched(connection: sqlite3.Connection, group_id: UUID, numbers: Sequence[int]) -> set[int]:
    """Return those of a page's numbers that have not come yet."""
    row = connection.execute(
        "SELECT group_key, fetched_up_to, again_after FROM groups WHERE group_id = ?", (group_id.bytes,)
    ).fetchone()
    if not row or not numbers:
        return set(numbers)
    had = connection.execute(
        "SELECT sequence_num FROM had WHERE group_key = ? AND sequence_num BETWEEN ? AND ?",
        (row[0], numbers[0], numbers[-1]),
    )
    from_here = row[1] if row[2] is None else row[2]
    return {each for each in numbers if each > from_here} - {each[0] for each in had}


def record_page(
    connection: sqlite3.Connection, group_key: int, after: int, up_to: int, numbers: Sequence[int], *, in_doubt: bool
) -> int | None:
    """Note that a page with ``numbers`` was fetched; return how far the group was fetched before.

    None, and nothing is noted: the group is not at ``after``, neither for the first time nor again.
    """
    was = _FetchPosition(
        *connection.execute(
            "SELECT fetched_up_to, again_after FROM groups WHERE group_key = ?", (group_key,)
        ).fetchone()
    )
    if after not in was:
        return None
    fetched, again = max(was.fetched, up_to), was.again
    if again is None and in_doubt and len(numbers) < up_to - after:
        again = after
    elif again == after and not in_doubt:
        again = up_to if up_to < fetched else None
        # That more was read did not count at the server while this was missing: it is told once more.
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
    return was.fetched


def store(
    connection: sqlite3.Connection, group_key: int, fetched: int, arrived: Sequence[IncomingMessage], times: TimeBounds
) -> None:
    """Store messages, those late whose numbers are not greater than ``fetched``; what is expired already is not."""
    expiry, read_up_to = connection.execute(
        "SELECT expiry, read_up_to FROM groups WHERE group_key = ?", (group_key,)
    ).fetchone()
    for each in arrived:
        if expiry > 0 and min(each.created_at, times.now) + expiry < times.confirmed:
            continue
        redact_at = each.redact_at(times.now)
        if redact_at is None and each.self_destruct_seconds and each.sequence_num <= read_up_to:
            redact_at = times.earliest + each.self_destruct_seconds  # the server is told once more that it is read
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
    """Return the messages of a group for which a condition holds. ``values``: those of its parameters."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM messages JOIN groups USING (group_key) WHERE group_id = ? AND {condition}",
        (group_id.bytes, *values),
    ).fetchall()
    return [_message(connection, row) for row in rows]


def _message(connection: sqlite3.Connection, row: Sequence[object]) -> Message:
    group_id, number, sender_id, is_readable, created_at, seconds, gone_at, segment, body_id = row
    text = bodies.get(connection, segment, body_id).decode(errors="replace") if is_readable else None  # type: ignore[arg-type]  # rows have no types
    return Message(UUID(bytes=group_id), number, UUID(bytes=sender_id), text, created_at, seconds, gone_at)  # type: ignore[arg-type]  # as above
