"""Timers of self-destructing messages: one for each message and each member who has read it.

``visibility.py`` uses these rows to decide whether a message is hidden from a reader. This module starts timers,
records pending notifications of their ends, and deletes them with their messages. Timers of ended memberships no
longer count, although their rows stay until the messages are deleted.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from conclave.failpoints import reach
from conclave.retention.rules import MAX_AGE
from conclave.store import bodies
from conclave.store.engine.sqlite import placeholders
from conclave.store.resources.members import Membership

STARTED_PER_STEP = 2_048
"""About 2,048 timers start in a transaction. Senders wait for it."""

SWEPT_PER_STEP = 256
"""A step deletes at most 256 timers of deleted messages."""

NOTIFIED_PER_STEP = 256
"""Notifications of at most 256 ended timers are taken in a transaction."""

MAX_MISSED = 1_000
"""At most 1,000 missed redactions are stored for a user, to be sent at the next connect."""

MAX_TIMERS = 10_000_000
"""A group's self-destructing messages times its members is at most 10 million, which take about 1 GB on disk."""

MAX_MESSAGES = 100_000
"""A group has at most 100,000 self-destructing messages, since pages skip those that are redacted for the reader.

With a million, that would take up to 1.6 s at each request.
"""

TIMER_BYTES = 128
"""A timer takes about 100 bytes with its indexes."""


class Redaction(NamedTuple):
    """A message that is redacted for a user from now on. ``missed_id``: the row of the pending notification.

    ``is_member``: whether the user is still a member; former members are not notified.
    """

    missed_id: int
    user_id: bytes
    group_id: bytes
    sequence_num: int
    is_member: bool = True


def has_room(connection: sqlite3.Connection, group_key: int, members: int, more: int) -> bool:
    """Return whether a group with ``members`` members may have ``more`` self-destructing messages."""
    stored = connection.execute("SELECT self_destructs FROM groups WHERE group_key = ?", (group_key,)).fetchone()[0]
    return bool(stored + more <= min(MAX_MESSAGES, MAX_TIMERS // members))


def add_messages(connection: sqlite3.Connection, messages: Sequence[tuple[int, int, bytes, int]], now: int) -> None:
    """Add self-destructing messages: group key, number, sender, seconds. The senders' timers start at once."""
    connection.executemany(
        "INSERT INTO self_destructing (group_key, sequence_num, seconds) VALUES (?, ?, ?)",
        [(group_key, number, seconds) for group_key, number, _, seconds in messages],
    )
    connection.executemany(
        "UPDATE groups SET self_destructs = self_destructs + 1 WHERE group_key = ?", [(each[0],) for each in messages]
    )
    connection.executemany(
        "INSERT INTO timers (group_key, sequence_num, member_id, seconds, redact_at)"
        " SELECT group_key, ?2, member_id, ?4, ?5 + ?4 FROM members WHERE group_key = ?1 AND user_id = ?3",
        [(*each, now) for each in messages],
    )
    reach("timers.begun")


def first_after(connection: sqlite3.Connection, group_key: int, number: int) -> int | None:
    """Return the first number greater than ``number`` of a self-destructing message of a group."""
    first: int | None = connection.execute(
        "SELECT min(sequence_num) FROM self_destructing WHERE group_key = ? AND sequence_num > ?", (group_key, number)
    ).fetchone()[0]
    return first


def needs_noting(member: Membership, up_to: int) -> bool:
    """Return whether a read receipt up to a number has to be stored.

    Groups without self-destructing messages do not need it: later messages have greater numbers.
    """
    return member.group.self_destructs > 0 and min(up_to, member.group.last_seq) > member.read_up_to


def note_read(
    connection: sqlite3.Connection,
    member: Membership,
    up_to: int,
    now: int,
    most: int,
    *,
    acted_until: int | None,
) -> tuple[int, bool]:
    """Record that a member has read everything up to the number ``up_to``, at most the group's last one.

    A timer starts for each message that is covered for the first time, unless it is too old. Running timers do not
    change. At most ``most`` timers start; then only their range is stored. Returns how many started, and whether
    there are more. ``acted_until``: see ``state.latest_acted_on``. Raises StoreFullError.
    """
    if not needs_noting(member, up_to):
        return 0, False
    group = member.group
    last = min(up_to, group.last_seq)
    started, last_started = connection.execute(
        "SELECT count(*), max(sequence_num) FROM (SELECT sequence_num FROM self_destructing WHERE group_key = ?"
        " AND sequence_num > ? AND sequence_num <= ? ORDER BY sequence_num LIMIT ?)",
        (group.group_key, member.read_up_to, last, most),
    ).fetchone()
    up_to = last_started if started == most else last
    bodies.claim_room(connection, started * TIMER_BYTES)
    connection.execute("UPDATE members SET read_up_to = ? WHERE member_id = ?", (up_to, member.member_id))
    reach("read.noted")
    connection.execute(
        "INSERT OR IGNORE INTO timers (group_key, sequence_num, member_id, seconds, redact_at)"
        f" SELECT group_key, sequence_num, :member_id, seconds, {_END_TIME}"
        " FROM self_destructing CROSS JOIN messages USING (group_key, sequence_num)"
        " WHERE group_key = :group_key AND sequence_num > :after AND sequence_num <= :up_to AND NOT ended"
        f" AND created_at >= min(:now, :then) - {MAX_AGE}",
        {
            "member_id": member.member_id,
            "group_key": group.group_key,
            "after": max(member.read_up_to, member.joined_after),
            "up_to": up_to,
            "now": now,
            "then": now if acted_until is None else acted_until,
        },
    )
    reach("read.started")
    return started, up_to < last


_END_TIME = (
    f"iif(created_at < :now - {MAX_AGE}, :now,"
    f" iif(created_at < :then - {MAX_AGE}, min(:now + seconds, created_at + {MAX_AGE} + 1), :now + seconds))"
)
"""SQL expression for the second at which a timer ends that starts now. It is correct even for a wrong clock.

A message that is too old only according to a fast clock gets a timer that has ended; it starts once the clock is set
back and accepted. A message that is young only according to a slow clock is hidden when its maximum age ends.
"""


def are_due(connection: sqlite3.Connection, now: int) -> bool:
    """Return whether any timer has ended whose reader was not notified."""
    return (
        connection.execute("SELECT 1 FROM timers WHERE NOT told AND redact_at <= ? LIMIT 1", (now,)).fetchone()
        is not None
    )


def take_ended(connection: sqlite3.Connection, now: int, most: int = NOTIFIED_PER_STEP) -> tuple[int, list[Redaction]]:
    """Mark at most ``most`` timers that have ended by ``now`` as notified, those that ended first.

    Returns their number, and the redactions to publish. Each is also recorded as missed until ``confirm_notified`` is
    called, so that a reader without a stream is notified later. Former members are not notified.
    """
    rows = connection.execute(
        "SELECT timer_id, user_id, timers.group_key, group_id, sequence_num, EXISTS (SELECT 1 FROM self_destructing"
        " WHERE self_destructing.group_key = timers.group_key AND self_destructing.sequence_num = timers.sequence_num)"
        " AS is_stored FROM (SELECT * FROM timers WHERE NOT told AND redact_at <= ? ORDER BY redact_at LIMIT ?)"
        " AS timers LEFT JOIN members USING (member_id) LEFT JOIN groups ON groups.group_key = members.group_key"
        " ORDER BY redact_at, timer_id",
        (now, most),
    ).fetchall()
    connection.executemany(
        "UPDATE timers SET told = 1 WHERE timer_id = ?", [(row["timer_id"],) for row in rows if row["is_stored"]]
    )
    # Timers of messages that cleanup has erased.
    connection.executemany(
        "DELETE FROM timers WHERE timer_id = ?", [(row["timer_id"],) for row in rows if not row["is_stored"]]
    )
    reach("timers.ended")
    notifications = [
        (row["user_id"], row["group_id"], row["group_key"], row["sequence_num"])
        for row in rows
        if row["user_id"] is not None
    ]
    redactions = note_missed(connection, notifications)
    reach("timers.told")
    return len(rows), redactions


def note_missed(
    connection: sqlite3.Connection, notifications: Iterable[tuple[bytes, bytes, int, int]]
) -> list[Redaction]:
    """Record redactions about which users are to be notified: user id, group id, group key, number."""
    redactions = []
    for user_id, group_id, group_key, number in notifications:
        missed_id = connection.execute(
            "INSERT INTO missed_redactions (user_id, group_key, sequence_num) VALUES (?, ?, ?)",
            (user_id, group_key, number),
        ).lastrowid
        redactions.append(Redaction(missed_id or 0, user_id, group_id, number))
    connection.executemany(
        "DELETE FROM missed_redactions WHERE user_id = ?1 AND missed_id <= (SELECT missed_id FROM missed_redactions"
        " WHERE user_id = ?1 ORDER BY missed_id DESC LIMIT 1 OFFSET ?2)",
        [(user_id, MAX_MISSED) for user_id in {each.user_id for each in redactions}],
    )
    return redactions


def last_missed(connection: sqlite3.Connection) -> int:
    """Return the greatest id of a missed redaction; 0 if there is none."""
    return int(connection.execute("SELECT ifnull(max(missed_id), 0) FROM missed_redactions").fetchone()[0])


def missed_redactions(connection: sqlite3.Connection, user_id: bytes) -> list[Redaction]:
    """List the redactions that a user has missed, oldest first."""
    rows = connection.execute(
        "SELECT missed_id, missed.user_id, ifnull(group_id, x''), sequence_num, member_id IS NOT NULL"
        " FROM missed_redactions AS missed LEFT JOIN groups USING (group_key) LEFT JOIN members"
        " ON members.group_key = missed.group_key AND members.user_id = missed.user_id"
        " WHERE missed.user_id = ? ORDER BY missed_id",
        (user_id,),
    )
    return [Redaction(*row) for row in rows]


def confirm_notified(connection: sqlite3.Connection, missed_ids: Iterable[int]) -> None:
    """Delete missed redactions whose users were notified."""
    connection.executemany("DELETE FROM missed_redactions WHERE missed_id = ?", [(each,) for each in missed_ids])


def forget(connection: sqlite3.Connection, numbers_by_group: Mapping[int, Sequence[int]]) -> None:
    """Delete the data of self-destructing messages in the transaction that deletes the messages.

    ``numbers_by_group``: their numbers by group key. Their timers, one for each reader, are deleted later by ``sweep``.
    """
    if connection.execute("SELECT 1 FROM self_destructing LIMIT 1").fetchone() is None:
        return
    for group_key, numbers in numbers_by_group.items():
        deleted_rows = connection.execute(
            f"DELETE FROM self_destructing WHERE group_key = ? AND sequence_num IN ({placeholders(numbers)})"
            " RETURNING group_key, sequence_num",
            (group_key, *numbers),
        ).fetchall()
        connection.executemany("INSERT OR IGNORE INTO ended_timers VALUES (?, ?)", deleted_rows)
        connection.execute(
            "UPDATE groups SET self_destructs = self_destructs - ? WHERE group_key = ?", (len(deleted_rows), group_key)
        )
    reach("timers.forgotten")


def has_leftovers(connection: sqlite3.Connection) -> bool:
    """Return whether ``sweep`` has anything to do."""
    return connection.execute("SELECT 1 FROM ended_timers LIMIT 1").fetchone() is not None


def sweep(connection: sqlite3.Connection, now: int) -> bool:
    """Delete some timers of deleted messages; return whether there are more.

    Timers that had ended by ``now`` without a notification stay: ``take_ended`` deletes them.
    """
    row = connection.execute("SELECT group_key, sequence_num FROM ended_timers LIMIT 1").fetchone()
    if row is None:
        return False
    deleted_count = connection.execute(
        "DELETE FROM timers WHERE timer_id IN (SELECT timer_id FROM timers WHERE group_key = ? AND sequence_num = ?"
        " AND (told OR redact_at > ?) LIMIT ?)",
        (*row, now, SWEPT_PER_STEP),
    ).rowcount
    if deleted_count < SWEPT_PER_STEP:
        connection.execute("DELETE FROM ended_timers WHERE group_key = ? AND sequence_num = ?", tuple(row))
    reach("timers.swept")
    return True
