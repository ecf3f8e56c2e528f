"""Archive status for operators: amounts, overdue erasures, and moved batches."""

import sqlite3
from dataclasses import dataclass

from conclave.retention.holds import UNHELD
from conclave.retention.rules import DELETED_GROUP, EXPIRED, GOVERNED, TAKEN_BACK, Bounds, certain_of_part


@dataclass(frozen=True)
class ArchivedAmount:
    """The archived messages of one class and month.

    ``lifetime``: the class, in seconds or KEEP. ``month``: the month in which the span begins, such as 2026-01.
    """

    lifetime: int
    month: str
    groups: int = 0
    messages: int = 0
    body_bytes: int = 0


@dataclass(frozen=True)
class ArchiveOverdue:
    """Messages that the next run deletes from the archive. Seconds: how long the oldest of them is overdue; 0 if none.

    Withheld messages are left out, as in ``views/overdue.py``; but times do not take later runs and decisions into
    account. ``expired_parts``: rows of the index with messages that have expired and are old enough to be erased.
    ``deleted_groups`` and ``deleted_accounts``: those with archived messages; the seconds count from their deletion.
    ``restored_messages``: those moved back to the hot store. ``taken_back_messages``: an upper bound of the withdrawn
    ones, since some may be too young.
    """

    expired_parts: int = 0
    expired_seconds: int = 0
    deleted_groups: int = 0
    deleted_groups_seconds: int = 0
    deleted_accounts: int = 0
    deleted_accounts_seconds: int = 0
    restored_messages: int = 0
    taken_back_messages: int = 0


@dataclass(frozen=True)
class Move:
    """A finished or unfinished batch. Times are Unix seconds.

    For an unfinished batch, ``finished_at`` is None and ``messages`` is an upper bound.
    """

    batch: int
    fixed_at: int
    finished_at: int | None
    messages: int


def amounts(connection: sqlite3.Connection) -> list[ArchivedAmount]:
    """Return the archived amounts, ordered by class and month."""
    rows = connection.execute(
        "SELECT lifetime, strftime('%Y-%m', span, 'unixepoch') AS month, count(DISTINCT group_key),"
        " sum(message_count), sum(body_bytes) FROM archive_parts GROUP BY lifetime, month ORDER BY lifetime, month"
    )
    return [ArchivedAmount(*row) for row in rows]


def overdue(connection: sqlite3.Connection, now: int) -> ArchiveOverdue:
    """Return the overdue erasures at the Unix second ``now``."""
    bounds, with_clause, values = Bounds().as_needed(connection), f"WITH {GOVERNED}", {"now": now}
    expired_counts = connection.execute(
        f"{with_clause} SELECT count(*), max(min(cutoff, erasable_before) - oldest)"
        f" FROM archive_parts JOIN governed_groups USING (group_key) WHERE {certain_of_part([EXPIRED], bounds)}",
        values,
    ).fetchone()
    group_counts = connection.execute(
        f"{with_clause} SELECT count(*), :now - min(deleted_at) FROM governed_tombstones WHERE EXISTS"
        " (SELECT 1 FROM archive_parts WHERE archive_parts.group_key = governed_tombstones.group_key"
        f" AND {certain_of_part([DELETED_GROUP], bounds)})",
        values,
    ).fetchone()
    account_counts = connection.execute(
        f"{with_clause} SELECT count(DISTINCT user_id), :now - min(created_at) FROM user_tombstones"
        " JOIN archive_senders ON sender_id = user_id JOIN governed_groups USING (group_key)"
        f" WHERE erasable_before > 0 AND {UNHELD}",
        values,
    ).fetchone()
    restored_counts = connection.execute("SELECT ifnull(sum(messages), 0) FROM archive_returned").fetchone()
    withdrawn_counts = connection.execute(
        f"{with_clause} SELECT count(*) FROM taken_back JOIN governed_groups USING (group_key) WHERE NOT erased"
        " AND sequence_num <= archived_seq AND EXISTS (SELECT 1 FROM archive_parts"
        " WHERE archive_parts.group_key = taken_back.group_key AND sequence_num BETWEEN first_seq AND last_seq"
        f" AND {certain_of_part([TAKEN_BACK], bounds)})",
        values,
    ).fetchone()
    counts = (*expired_counts, *group_counts, *account_counts, *restored_counts, *withdrawn_counts)
    return ArchiveOverdue(*(max(0, number or 0) for number in counts))


def last_moves(connection: sqlite3.Connection, limit: int) -> list[Move]:
    """Return the last ``limit`` batches, newest first."""
    rows = connection.execute(
        "SELECT batch, fixed_at, finished_at, iif(finished_at IS NULL,"
        " (SELECT ifnull(sum(last_seq - first_seq + 1), 0) FROM archive_move_ranges AS ranges"
        " WHERE ranges.batch = moves.batch), message_count)"
        " FROM archive_moves AS moves ORDER BY batch DESC LIMIT ?",
        (limit,),
    )
    return [Move(*row) for row in rows]
