"""Unreadable messages that take space in the archive's files, by partition: erased, or moved back to the hot store.

The caller runs each function in a transaction.
"""

import sqlite3
from dataclasses import dataclass

from conclave.store.archive import moves

Partition = tuple[int, int]
"""A partition: its lifetime and its span."""


@dataclass(frozen=True)
class DeadSpace:
    """Erased messages that take space. ``since``: when the first was erased, Unix seconds; None: there are none."""

    messages: int = 0
    since: int | None = None


@dataclass(frozen=True)
class PartitionUsage:
    """A partition: how many messages it serves, how many are erased, and how many were moved back to the hot store."""

    living: int
    dead: DeadSpace
    returned: int

    def is_reclaimable(self, before: int) -> bool:
        """Return whether the partition is to be rewritten or dropped.

        True if more than a quarter of its messages are erased, if any was erased by the Unix second ``before``, or if
        messages were moved back to the hot store: these can only be archived again after that.
        """
        is_long_due = self.dead.since is not None and self.dead.since <= before
        exceeds_share = self.dead.messages * 3 > self.living
        return bool(self.returned) or is_long_due or exceeds_share


def note(connection: sqlite3.Connection, partition: Partition, messages: int, now: int) -> None:
    """Record that ``messages`` messages of a partition are erased at the Unix second ``now``."""
    connection.execute(
        "INSERT INTO archive_dead (lifetime, span, messages, since) VALUES (?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET messages = messages + excluded.messages",
        (*partition, messages, now),
    )


def dead(connection: sqlite3.Connection) -> DeadSpace:
    """Return the erased messages of all partitions together."""
    return DeadSpace(*connection.execute("SELECT ifnull(sum(messages), 0), min(since) FROM archive_dead").fetchone())


def shares(connection: sqlite3.Connection) -> dict[Partition, PartitionUsage]:
    """Return the partitions with messages that were erased, or moved back to the hot store."""
    rows = connection.execute(
        "WITH back AS (SELECT lifetime, span, sum(messages) AS returned FROM archive_returned GROUP BY lifetime, span),"
        " parts AS (SELECT lifetime, span, sum(message_count) AS living FROM archive_parts GROUP BY lifetime, span)"
        " SELECT lifetime, span, ifnull(living, 0), ifnull(dead.messages, 0), since, ifnull(returned, 0)"
        " FROM archive_dead AS dead FULL JOIN back USING (lifetime, span) LEFT JOIN parts USING (lifetime, span)"
        " ORDER BY lifetime, span"
    )
    return {(row[0], row[1]): PartitionUsage(row[2], DeadSpace(row[3], row[4]), row[5]) for row in rows}


def note_reclaimed(connection: sqlite3.Connection, partition: Partition, version: int) -> None:
    """Record that from ``version`` of the table on, a partition has only messages that the archive serves."""
    moves.note_version(connection, version)
    for table in ("archive_dead", "archive_returned"):
        connection.execute(f"DELETE FROM {table} WHERE lifetime = ? AND span = ?", partition)


def note_unsettled(connection: sqlite3.Connection) -> None:
    """Record that the index may count messages whose keys are destroyed: it was restored from a backup."""
    connection.execute("UPDATE archive_state SET unsettled = 1")


def note_settled(connection: sqlite3.Connection) -> None:
    """Record that the index counts no message whose key is destroyed."""
    connection.execute("UPDATE archive_state SET unsettled = 0")


def is_unsettled(connection: sqlite3.Connection) -> bool:
    """Return whether the index may count messages whose keys are destroyed."""
    return connection.execute("SELECT 1 FROM archive_state WHERE unsettled").fetchone() is not None


def is_due(connection: sqlite3.Connection, now: int, interval: int) -> bool:
    """Return whether there is an archive, and space was last reclaimed at least ``interval`` seconds ago."""
    row = connection.execute("SELECT 1 FROM archive_state WHERE version > 0 AND reclaimed_at <= ?", (now - interval,))
    return row.fetchone() is not None


def note_done(connection: sqlite3.Connection, now: int) -> None:
    """Record that space was reclaimed at the Unix second ``now``."""
    connection.execute("UPDATE archive_state SET reclaimed_at = ?", (now,))
