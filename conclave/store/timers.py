"""Timers of self-destructing messages: one for each message and each member who has read it.

Whether a message is hidden from a reader is decided by ``visibility.py``, from the times in these rows. What is here
starts timers, tells their readers that they have ended, and forgets them with their messages. Who has left has no
timer that counts: a membership that ends takes its own along, although their rows stay until the messages go.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from conclave.failpoints import reach
from conclave.store.members import Membership
from conclave.store.news import announce
from conclave.store.sqlite import places

STARTED_AT_ONCE = 1_000
"""At most 1,000 timers start in a transaction: whoever sends waits for it."""

SWEPT_AT_ONCE = 256
"""At most 256 timers of messages that are gone are deleted in a step."""

TOLD_AT_ONCE = 256
"""At most 256 timers that have ended are told of in a transaction."""

MOST_MISSED = 1_000
"""A user learns at the next connect of the last 1,000 messages that were redacted meanwhile."""


class Redaction(NamedTuple):
    """A message that is redacted for a user from now on. ``missed_id``: the note that the user has to be told."""

    missed_id: int
    user_id: bytes
    group_id: bytes
    sequence_num: int


def begin(connection: sqlite3.Connection, sent: Sequence[tuple[int, int, bytes, int]], now: int) -> None:
    """Note messages that destroy themselves: group key, number, sender, seconds. Their senders have read them."""
    connection.executemany(
        "INSERT INTO self_destructing (group_key, sequence_num, seconds) VALUES (?, ?, ?)",
        [(group_key, number, seconds) for group_key, number, _, seconds in sent],
    )
    connection.executemany(
        "UPDATE groups SET self_destructs = 1 WHERE group_key = ? AND NOT self_destructs",
        [(group_key,) for group_key in {each[0] for each in sent}],
    )
    connection.executemany(
        "INSERT INTO timers (group_key, sequence_num, member_id, seconds, redact_at)"
        " SELECT group_key, ?2, member_id, ?4, ?5 + ?4 FROM members WHERE group_key = ?1 AND user_id = ?3",
        [(*each, now) for each in sent],
    )
    reach("timers.begun")


def read(connection: sqlite3.Connection, member: Membership, up_to: int, now: int) -> bool:
    """Note that a member has read everything up to the number ``up_to``, as far as the group has it.

    A timer starts for each message that this covers for the first time. Nothing changes one that runs. At most
    STARTED_AT_ONCE start: then only what they cover is noted, and the return value says that there is more.
    """
    group = member.group
    last = up_to = min(up_to, group.last_seq)
    if up_to <= member.read_up_to:
        return False
    if group.self_destructs:
        row = connection.execute(
            "SELECT sequence_num FROM self_destructing WHERE group_key = ? AND sequence_num > ? AND sequence_num <= ?"
            " ORDER BY sequence_num LIMIT 1 OFFSET ?",
            (group.group_key, member.read_up_to, last, STARTED_AT_ONCE - 1),
        ).fetchone()
        up_to = row[0] if row else last
    connection.execute("UPDATE members SET read_up_to = ? WHERE member_id = ?", (up_to, member.member_id))
    reach("read.noted")
    if group.self_destructs:
        connection.execute(
            "INSERT OR IGNORE INTO timers (group_key, sequence_num, member_id, seconds, redact_at)"
            " SELECT group_key, sequence_num, ?1, seconds, ?2 + seconds FROM self_destructing"
            " WHERE group_key = ?3 AND sequence_num > ?4 AND sequence_num <= ?5",
            (member.member_id, now, group.group_key, max(member.read_up_to, member.joined_after), up_to),
        )
        reach("read.started")
    return up_to < last


def are_due(connection: sqlite3.Connection, now: int) -> bool:
    """Tell whether any timer has ended that nobody was told of."""
    return (
        connection.execute("SELECT 1 FROM timers WHERE NOT told AND redact_at <= ? LIMIT 1", (now,)).fetchone()
        is not None
    )


def tell(connection: sqlite3.Connection, now: int, most: int = TOLD_AT_ONCE) -> tuple[int, list[Redaction]]:
    """Tell readers of timers that have ended by ``now``, at most ``most``: those that ended first.

    Return how many timers that were, and what was told. It is noted as missed, too, until ``heard`` says otherwise:
    whoever does not listen learns of it later. Whoever is no member any more is not told.
    """
    ended = connection.execute(
        "SELECT timer_id, user_id, timers.group_key, group_id, sequence_num FROM"
        " (SELECT * FROM timers WHERE NOT told AND redact_at <= ? ORDER BY redact_at LIMIT ?) AS timers"
        " LEFT JOIN members USING (member_id) LEFT JOIN groups ON groups.group_key = members.group_key"
        " ORDER BY redact_at, timer_id",
        (now, most),
    ).fetchall()
    connection.executemany("UPDATE timers SET told = 1 WHERE timer_id = ?", [(row["timer_id"],) for row in ended])
    reach("timers.ended")
    told = []
    readers: dict[tuple[bytes, int], set[bytes]] = {}
    for row in ended:
        if row["user_id"] is None:
            continue
        missed_id = connection.execute(
            "INSERT INTO missed_redactions (user_id, group_key, sequence_num) VALUES (?, ?, ?)",
            (row["user_id"], row["group_key"], row["sequence_num"]),
        ).lastrowid
        told.append(Redaction(missed_id or 0, row["user_id"], row["group_id"], row["sequence_num"]))
        readers.setdefault((row["group_id"], row["sequence_num"]), set()).add(row["user_id"])
    connection.executemany(
        "DELETE FROM missed_redactions WHERE user_id = ?1 AND missed_id <= (SELECT missed_id FROM missed_redactions"
        " WHERE user_id = ?1 ORDER BY missed_id DESC LIMIT 1 OFFSET ?2)",
        [(user_id, MOST_MISSED) for user_id in {each.user_id for each in told}],
    )
    for (group_id, number), user_ids in readers.items():
        announce(connection, user_ids, "message_redacted", group_id=group_id, sequence_num=number)
    reach("timers.told")
    return len(ended), told


def missed(connection: sqlite3.Connection, user_id: bytes) -> list[Redaction]:
    """List what a user has missed in groups that the user is still in, the first first."""
    rows = connection.execute(
        "SELECT missed_id, user_id, group_id, sequence_num FROM missed_redactions JOIN groups USING (group_key)"
        " JOIN members USING (group_key, user_id) WHERE user_id = ? ORDER BY missed_id",
        (user_id,),
    )
    return [Redaction(*row) for row in rows]


def heard(connection: sqlite3.Connection, redactions: Iterable[Redaction]) -> None:
    """Note that users were told of redactions."""
    connection.executemany(
        "DELETE FROM missed_redactions WHERE missed_id = ?", [(each.missed_id,) for each in redactions]
    )


def forget(connection: sqlite3.Connection, gone: Iterable[tuple[int, int]]) -> None:
    """Forget what belongs to messages that are deleted: group key, number. Call it in the same transaction.

    Their timers, one for each reader, go later, by ``sweep``.
    """
    if connection.execute("SELECT 1 FROM self_destructing LIMIT 1").fetchone() is None:
        return
    of_group: dict[int, list[int]] = {}
    for group_key, number in gone:
        of_group.setdefault(group_key, []).append(number)
    for group_key, numbers in of_group.items():
        named = f"group_key = ? AND sequence_num IN ({places(numbers)})"
        if connection.execute(f"DELETE FROM self_destructing WHERE {named}", (group_key, *numbers)).rowcount:
            connection.execute(
                f"INSERT OR IGNORE INTO ended_timers SELECT DISTINCT group_key, sequence_num FROM timers WHERE {named}",
                (group_key, *numbers),
            )
            connection.execute(
                "UPDATE groups SET self_destructs = 0 WHERE group_key = ?1"
                " AND NOT EXISTS (SELECT 1 FROM self_destructing WHERE group_key = ?1)",
                (group_key,),
            )
    reach("timers.forgotten")


def are_left(connection: sqlite3.Connection) -> bool:
    """Tell whether ``sweep`` has anything to do."""
    return connection.execute("SELECT 1 FROM ended_timers LIMIT 1").fetchone() is not None


def sweep(connection: sqlite3.Connection) -> bool:
    """Delete some timers of messages that are gone; return whether there are more."""
    row = connection.execute("SELECT group_key, sequence_num FROM ended_timers LIMIT 1").fetchone()
    if row is None:
        return False
    deleted = connection.execute(
        "DELETE FROM timers WHERE timer_id IN"
        " (SELECT timer_id FROM timers WHERE group_key = ? AND sequence_num = ? LIMIT ?)",
        (*row, SWEPT_AT_ONCE),
    ).rowcount
    if deleted < SWEPT_AT_ONCE:
        connection.execute("DELETE FROM ended_timers WHERE group_key = ? AND sequence_num = ?", tuple(row))
    reach("timers.swept")
    return True
