"""Messages that were taken back: redacted for all readers, until they are erased.

A row here hides a message, see ``retention/``. The row is kept as long as receipts are, so that devices that were
offline for long can delete their copies.
"""

import json
import sqlite3
from collections.abc import Collection, Sequence
from typing import NamedTuple

from conclave.failpoints import reach
from conclave.store.engine.sqlite import Step
from conclave.store.resources import timers
from conclave.store.resources.timers import Redaction

MAX_PER_GROUP = 100_000
"""A group has at most 100,000 messages that were taken back and are not erased, since pages skip over them.

A minimum lifetime or a legal hold may keep them for long, and each read of the archive needs their numbers.
"""

MAX_LISTED = 1_000
"""A response has at most 1,000 numbers of messages that were taken back."""

MESSAGES_PER_STEP = 64
"""Notifications for at most 64 messages are taken in one transaction."""

ROWS_PER_STEP = 256
"""A step processes at most 256 rows."""


class TakenBack(NamedTuple):
    """A withdrawal of a message. ``taken_at``: Unix seconds. ``taken_by``: a user's id; b"" if unknown.

    ``is_erased``: the message is erased in both tiers.
    """

    taken_at: int
    taken_by: bytes
    is_erased: bool = False


def find(connection: sqlite3.Connection, group_key: int, number: int) -> TakenBack | None:
    """Return when and by whom a message was taken back; None if it was not."""
    row = connection.execute(
        "SELECT taken_at, taken_by, erased FROM taken_back WHERE group_key = ? AND sequence_num = ?",
        (group_key, number),
    ).fetchone()
    return TakenBack(row[0], row[1], bool(row[2])) if row else None


def first_after(connection: sqlite3.Connection, group_key: int, number: int) -> int | None:
    """Return the first number greater than ``number`` of a message that was taken back and is in the hot store."""
    row = connection.execute(
        "SELECT sequence_num FROM taken_back CROSS JOIN messages USING (group_key, sequence_num)"
        " WHERE group_key = ? AND sequence_num > ? ORDER BY sequence_num LIMIT 1",
        (group_key, number),
    ).fetchone()
    return row and int(row[0])


def add(connection: sqlite3.Connection, group_key: int, number: int, withdrawal: TakenBack) -> bool:
    """Take a message back, to be announced to the group's members; return False if it was taken back before."""
    added_count = connection.execute(
        "INSERT OR IGNORE INTO taken_back (group_key, sequence_num, taken_at, taken_by) VALUES (?, ?, ?, ?)",
        (group_key, number, withdrawal.taken_at, withdrawal.taken_by),
    ).rowcount
    connection.execute(
        "UPDATE groups SET taken_back_count = taken_back_count + ? WHERE group_key = ?", (added_count, group_key)
    )
    reach("taken_back.noted")
    return added_count > 0


def is_stored(connection: sqlite3.Connection, group_key: int, number: int) -> bool:
    """Return whether a message may be in either tier, or moving between them."""
    row = connection.execute(
        f"SELECT 1 FROM (SELECT ? AS group_key, ? AS sequence_num) AS taken WHERE {_IS_STORED}",
        (group_key, number),
    ).fetchone()
    return row is not None


_IS_MOVING = (
    "EXISTS (SELECT 1 FROM archive_move_ranges AS moving JOIN archive_moves USING (batch) WHERE finished_at IS NULL"
    " AND moving.group_key = taken.group_key AND taken.sequence_num BETWEEN moving.first_seq AND moving.last_seq)"
)

_IN_HOT_STORE = (
    "EXISTS (SELECT 1 FROM messages WHERE messages.group_key = taken.group_key"
    " AND messages.sequence_num = taken.sequence_num)"
)

_IN_PART = (
    "EXISTS (SELECT 1 FROM archive_parts AS parts WHERE parts.group_key = taken.group_key"
    " AND taken.sequence_num BETWEEN parts.first_seq AND parts.last_seq{})"
)

_IS_STORED = f"({_IN_HOT_STORE} OR {_IS_MOVING} OR {_IN_PART.format('')})"


def has_unnotified(connection: sqlite3.Connection) -> bool:
    """Return whether any member is still to be notified of a message that was taken back."""
    row = connection.execute("SELECT 1 FROM taken_back WHERE told_to IS NOT NULL LIMIT 1").fetchone()
    return row is not None


def take_unnotified(connection: sqlite3.Connection, most: int = timers.NOTIFIED_PER_STEP) -> list[Redaction]:
    """Take about ``most`` pending notifications of messages that were taken back, and return them.

    Each is also recorded as missed until ``timers.confirm_notified`` is called.
    """
    rows = connection.execute(
        "SELECT group_key, sequence_num, told_to FROM taken_back WHERE told_to IS NOT NULL LIMIT ?",
        (MESSAGES_PER_STEP,),
    ).fetchall()
    redactions: list[Redaction] = []
    for group_key, number, told_to in rows:
        if len(redactions) >= most:
            break
        members = connection.execute(
            "SELECT member_id, user_id, group_id FROM members JOIN groups USING (group_key)"
            " WHERE group_key = ? AND member_id > ? ORDER BY member_id LIMIT ?",
            (group_key, told_to, most),
        ).fetchall()
        redactions += timers.note_missed(connection, [(row[1], row[2], group_key, number) for row in members])
        connection.execute(
            "UPDATE taken_back SET told_to = ? WHERE group_key = ? AND sequence_num = ?",
            (members[-1][0] if len(members) == most else None, group_key, number),
        )
    reach("taken_back.told")
    return redactions


def sweep_step(connection: sqlite3.Connection) -> Step:
    """Return a Step that marks messages as erased that are in neither tier, ROWS_PER_STEP rows at a time.

    Under a legal hold there may be very many rows.
    """
    after = (0, 0)

    def step() -> bool:
        nonlocal after
        rows = connection.execute(
            f"SELECT group_key, sequence_num, {_IS_STORED} FROM taken_back AS taken"
            " WHERE NOT erased AND (group_key, sequence_num) > (?, ?) ORDER BY group_key, sequence_num LIMIT ?",
            (*after, ROWS_PER_STEP),
        ).fetchall()
        _note_erased(connection, [(row[0], row[1]) for row in rows if not row[2]])
        after = (rows[-1][0], rows[-1][1]) if rows else after
        return len(rows) == ROWS_PER_STEP

    return step


def of_group(connection: sqlite3.Connection, group_key: int) -> list[int]:
    """Return the numbers of a group's messages that were taken back and are not erased, in either tier."""
    rows = connection.execute("SELECT sequence_num FROM taken_back WHERE group_key = ? AND NOT erased", (group_key,))
    return [row[0] for row in rows]


class Numbers(NamedTuple):
    """Numbers of messages that were taken back, ascending. ``more``: whether there are more."""

    numbers: list[int]
    more: bool


def latest(connection: sqlite3.Connection, group_key: int) -> Numbers:
    """Return the last MAX_LISTED messages of a group that were taken back, erased or not."""
    rows = connection.execute(
        "SELECT sequence_num FROM taken_back WHERE group_key = ? ORDER BY taken_at DESC LIMIT ?",
        (group_key, MAX_LISTED + 1),
    )
    numbers = [row[0] for row in rows]
    return Numbers(sorted(numbers[:MAX_LISTED]), len(numbers) > MAX_LISTED)


def numbered_after(connection: sqlite3.Connection, group_key: int, after: int) -> Numbers:
    """Return the first MAX_LISTED numbers greater than ``after`` that were taken back in a group, erased or not."""
    rows = connection.execute(
        "SELECT sequence_num FROM taken_back WHERE group_key = ? AND sequence_num > ? ORDER BY sequence_num LIMIT ?",
        (group_key, after, MAX_LISTED + 1),
    )
    numbers = [row[0] for row in rows]
    return Numbers(numbers[:MAX_LISTED], len(numbers) > MAX_LISTED)


def forget_erased(
    connection: sqlite3.Connection,
    group_key: int,
    numbers: Collection[int],
    parts: Sequence[tuple[int, int]],
) -> None:
    """Mark messages as erased that are no longer in the archive, unless they are stored elsewhere.

    ``numbers``: those not found in ``parts`` (lifetime, span) of the archive.
    """
    in_other_part = _IN_PART.format(
        " AND (parts.lifetime, parts.span) NOT IN (SELECT value ->> 0, value ->> 1 FROM json_each(?3))"
    )
    rows = connection.execute(
        "SELECT group_key, sequence_num FROM json_each(?2) CROSS JOIN taken_back AS taken"
        " ON group_key = ?1 AND sequence_num = json_each.value"
        f" WHERE NOT erased AND NOT {_IN_HOT_STORE} AND NOT {_IS_MOVING} AND NOT {in_other_part}",
        (group_key, json.dumps(sorted(numbers)), json.dumps(list(parts))),
    ).fetchall()
    _note_erased(connection, [(row[0], row[1]) for row in rows])


def prune(connection: sqlite3.Connection, before: int) -> bool:
    """Delete ROWS_PER_STEP rows of erased messages that were taken back before a Unix second.

    Returns whether more are left. It may be used as a Step of a cleanup run.
    """
    deleted_count = connection.execute(
        "DELETE FROM taken_back WHERE (group_key, sequence_num) IN (SELECT group_key, sequence_num FROM taken_back"
        " WHERE erased AND taken_at < ? AND told_to IS NULL LIMIT ?)",
        (before, ROWS_PER_STEP),
    ).rowcount
    return deleted_count == ROWS_PER_STEP


def _note_erased(connection: sqlite3.Connection, rows: Sequence[tuple[int, int]]) -> None:
    connection.executemany("UPDATE taken_back SET erased = 1 WHERE group_key = ? AND sequence_num = ?", rows)
    connection.executemany(
        "UPDATE groups SET taken_back_count = taken_back_count - 1 WHERE group_key = ?", [row[:1] for row in rows]
    )
    reach("taken_back.erased")
