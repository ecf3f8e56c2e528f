"""Cleanup's records about the archive: batches being moved, the index of parts, the table's state.

A batch is fixed here before anything is copied, and each group switches to the archive in one transaction. The caller
runs each function in a transaction. Functions that write may be repeated after a crash.
"""

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from uuid import uuid4

from conclave.retention.policy import KEEP
from conclave.store.engine.sqlite import values
from conclave.store.sender_index import SENT

KEPT_MOVES = 1000
"""About 1000 finished batches stay listed for operators."""


@dataclass(frozen=True)
class MoveRange:
    """The stored messages of one group with numbers from ``first_seq`` to ``last_seq``, inclusive.

    ``lifetime``: the class in which they are archived, in seconds or KEEP.
    """

    group_key: int
    first_seq: int
    last_seq: int
    lifetime: int


Key = tuple[int, int, int]
"""A part: group key, lifetime, span."""


@dataclass(frozen=True)
class PartRow:
    """One row of the index, a part: the messages of one group in one partition of the archive.

    ``lifetime`` and ``span``: the partition. ``first_seq`` and ``last_seq``: numbers, inclusive. ``oldest`` and
    ``newest``: when the messages were created, Unix seconds, inclusive.
    """

    group_key: int
    lifetime: int
    span: int
    first_seq: int
    last_seq: int
    oldest: int
    newest: int
    message_count: int
    body_bytes: int
    checksum: int

    @property
    def key(self) -> Key:
        """Group key, lifetime, span."""
        return self.group_key, self.lifetime, self.span


@dataclass(frozen=True)
class ArchiveState:
    """The database's state of the archive table.

    ``version``: readers need this table version or a later one; its files are kept. ``unerased``: replaced or
    half-written files may still be on disk, and the table may have later versions. ``turn``: see
    ``archive/snapshot.py``; the table has this turn or ``former_turn``.
    """

    archive_id: str
    version: int
    unerased: bool
    turn: int
    former_turn: int


def find_state(connection: sqlite3.Connection) -> ArchiveState | None:
    """Return the state of the archive; None if there never was one."""
    row = connection.execute("SELECT archive_id, version, unerased, turn, former_turn FROM archive_state").fetchone()
    return ArchiveState(row[0], row[1], bool(row[2]), row[3], row[4]) if row else None


def begin(connection: sqlite3.Connection) -> None:
    """Create the state of the archive, if there is none."""
    connection.execute("INSERT OR IGNORE INTO archive_state (id, archive_id) VALUES (1, ?)", (uuid4().hex,))


def is_in_use(connection: sqlite3.Connection) -> bool:
    """Return whether the archive has messages, is receiving some, or has unerased files."""
    return bool(
        connection.execute(
            "SELECT EXISTS (SELECT 1 FROM archive_parts)"
            " OR EXISTS (SELECT 1 FROM archive_moves WHERE finished_at IS NULL)"
            " OR EXISTS (SELECT 1 FROM archive_state WHERE unerased)"
        ).fetchone()[0]
    )


def has_parts(connection: sqlite3.Connection) -> bool:
    """Return whether the index of the archive has any part."""
    return bool(connection.execute("SELECT EXISTS (SELECT 1 FROM archive_parts)").fetchone()[0])


def holds_group(connection: sqlite3.Connection, group_key: int) -> bool:
    """Return whether the archive or an unfinished batch has messages of a group. Then its tombstone must stay."""
    return bool(
        connection.execute(
            "SELECT EXISTS (SELECT 1 FROM archive_parts WHERE group_key = ?1)"
            " OR EXISTS (SELECT 1 FROM archive_move_ranges JOIN archive_moves USING (batch)"
            " WHERE group_key = ?1 AND finished_at IS NULL)",
            (group_key,),
        ).fetchone()[0]
    )


def holds_sender(connection: sqlite3.Connection, user_id: bytes) -> bool:
    """Return whether the archive or an unfinished batch may have a user's messages. Then the tombstone must stay."""
    return bool(
        connection.execute(
            "SELECT EXISTS (SELECT 1 FROM archive_senders WHERE sender_id = ?)"
            " OR EXISTS (SELECT 1 FROM archive_moves WHERE finished_at IS NULL)",
            (user_id,),
        ).fetchone()[0]
    )


def note_version(connection: sqlite3.Connection, version: int) -> None:
    """Make readers use ``version`` of the table, or a later one."""
    connection.execute("UPDATE archive_state SET version = max(version, ?)", (version,))


def begin_turn(connection: sqlite3.Connection, turn: int, former_turn: int, version: int) -> None:
    """Record that a run is about to change the table.

    From here on, there may be files that do not belong to the table. ``former_turn`` and ``version``: the current ones
    of the table, whose files are kept.
    """
    connection.execute("UPDATE archive_state SET turn = ?, former_turn = ?, unerased = 1", (turn, former_turn))
    note_version(connection, version)


def note_erased(connection: sqlite3.Connection) -> None:
    """Record that no replaced or half-written files are left on disk."""
    connection.execute("UPDATE archive_state SET unerased = 0")


def batch_under_way(connection: sqlite3.Connection) -> int | None:
    """Return the number of the first unfinished batch; None if there is none."""
    row = connection.execute("SELECT batch FROM archive_moves WHERE finished_at IS NULL ORDER BY batch").fetchone()
    return row["batch"] if row else None


def last_batches(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the numbers of the last batch fixed, and of the last that has moved messages; 0 if there is none."""
    row = connection.execute(
        "SELECT ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'archive_moves'), 0), ifnull(("
        " SELECT max(batch) FROM archive_moves WHERE finished_at IS NOT NULL AND message_count > 0), 0)"
    ).fetchone()
    return row[0], row[1]


def ranges_of(connection: sqlite3.Connection, batch: int) -> list[MoveRange]:
    """Return the ranges of an unfinished batch, ordered by group."""
    rows = connection.execute(
        "SELECT group_key, first_seq, last_seq, lifetime FROM archive_move_ranges WHERE batch = ? ORDER BY group_key",
        (batch,),
    )
    return [MoveRange(*row) for row in rows]


def parts(connection: sqlite3.Connection, group_key: int | None = None) -> list[PartRow]:
    """Return the rows of the index, of one group or of all groups."""
    if group_key is None:
        return list(each_part(connection))
    return [PartRow(*row) for row in connection.execute(f"{_PARTS} WHERE group_key = ?", (group_key,))]


def parts_of_partition(connection: sqlite3.Connection, lifetime: int, span: int) -> list[PartRow]:
    """Return the rows of the index of one partition."""
    return [PartRow(*row) for row in connection.execute(f"{_PARTS} WHERE lifetime = ? AND span = ?", (lifetime, span))]


def groups_ahead(connection: sqlite3.Connection, now: int) -> list[bytes]:
    """Return the ids of groups with archived messages that were created at ``now`` or later."""
    rows = connection.execute(
        "SELECT DISTINCT group_id FROM archive_parts JOIN groups USING (group_key) WHERE newest >= ?",
        (now,),
    )
    return [row[0] for row in rows]


def each_part(connection: sqlite3.Connection) -> Iterator[PartRow]:
    """Yield the rows of the index, ordered by group, span and lifetime. There may be millions."""
    return (PartRow(*row) for row in connection.execute(f"{_PARTS} ORDER BY group_key, span, lifetime"))


PART_COLUMNS = "group_key, lifetime, span, first_seq, last_seq, oldest, newest, message_count, body_bytes, checksum"
"""The columns of a PartRow, in order."""

_PARTS = f"SELECT {PART_COLUMNS} FROM archive_parts"


def duplicated_ranges(connection: sqlite3.Connection, group_key: int) -> list[tuple[int, int]]:
    """Return the ranges (first, last) of a group's hot messages that are in the archive too.

    The archive serves them, will serve them once a verified batch has finished, or did so before the group was deleted.
    Their erasure is counted where it happens last: in the archive.
    """
    rows = connection.execute(
        "SELECT 0, archived_seq FROM groups WHERE group_key = ?1 AND archived_seq > 0"
        " UNION ALL SELECT first_seq, last_seq FROM archive_parts WHERE group_key = ?1"
        " AND NOT EXISTS (SELECT 1 FROM groups WHERE group_key = ?1)"
        " UNION ALL SELECT first_seq, last_seq FROM archive_move_ranges JOIN archive_moves USING (batch)"
        " WHERE group_key = ?1 AND finished_at IS NULL AND message_count > 0",
        (group_key,),
    )
    return [(row[0], row[1]) for row in rows]


def hot_copies(connection: sqlite3.Connection) -> list[MoveRange]:
    """Return one range for each group: messages still in the hot store although the archive serves them."""
    rows = connection.execute(
        "SELECT group_key, archived_seq FROM groups WHERE archived_seq > 0 AND EXISTS"
        " (SELECT 1 FROM messages WHERE messages.group_key = groups.group_key AND sequence_num <= archived_seq)"
    )
    return [MoveRange(row[0], 0, row[1], KEEP) for row in rows]


def fix_batch(connection: sqlite3.Connection, ranges: Iterable[MoveRange], now: int) -> int:
    """Store a batch and return its number. From here on its messages are fixed, even after a crash."""
    batch = connection.execute("INSERT INTO archive_moves (fixed_at) VALUES (?) RETURNING batch", (now,)).fetchone()[0]
    connection.executemany(
        "INSERT INTO archive_move_ranges (batch, group_key, first_seq, last_seq, lifetime) VALUES (?, ?, ?, ?, ?)",
        [(batch, *values(each)) for each in ranges],
    )
    return int(batch)


def note_verified(connection: sqlite3.Connection, batch: int, message_count: int, checksum: int | None) -> None:
    """Record how many messages of a batch were verified in the archive, and their checksum (None: no messages)."""
    connection.execute(
        "UPDATE archive_moves SET message_count = ?, checksum = ifnull(?, 0) WHERE batch = ?",
        (message_count, checksum, batch),
    )


def switch(
    connection: sqlite3.Connection,
    move_range: MoveRange,
    parts: Collection[PartRow],
    senders: Collection[bytes],
    version: int,
) -> None:
    """Serve a group's messages up to the end of ``move_range`` from ``version`` of the archive, not the hot store.

    ``parts``: the parts that the batch added to the archive. ``senders``: the senders of its application messages.
    Idempotent: an index row that has any number of the range has all of it.
    """
    connection.executemany(
        "INSERT INTO archive_parts (group_key, lifetime, span, first_seq, last_seq, oldest, newest, message_count,"
        " body_bytes, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (group_key, span, lifetime) DO UPDATE SET last_seq = excluded.last_seq,"
        " oldest = min(oldest, excluded.oldest), newest = max(newest, excluded.newest),"
        " message_count = message_count + excluded.message_count, body_bytes = body_bytes + excluded.body_bytes,"
        # XOR, which SQLite lacks; exact for negative numbers too.
        " checksum = (checksum | excluded.checksum) - (checksum & excluded.checksum)"
        " WHERE last_seq < excluded.first_seq",
        [values(each) for each in parts],
    )
    connection.executemany(
        "INSERT OR IGNORE INTO archive_senders (sender_id, group_key) VALUES (?, ?)",
        [(sender_id, move_range.group_key) for sender_id in senders],
    )
    connection.execute(
        "UPDATE groups SET archived_seq = max(archived_seq, ?) WHERE group_key = ?",
        (move_range.last_seq, move_range.group_key),
    )
    note_version(connection, version)


def finish(connection: sqlite3.Connection, batch: int, now: int) -> None:
    """Mark a batch as finished: its messages are served from the archive."""
    connection.execute("UPDATE archive_moves SET finished_at = ? WHERE batch = ?", (now, batch))
    connection.execute("DELETE FROM archive_move_ranges WHERE batch = ?", (batch,))
    connection.execute("DELETE FROM archive_moves WHERE batch < ? AND finished_at IS NOT NULL", (batch - KEPT_MOVES,))


def note_relaid(connection: sqlite3.Connection) -> None:
    """Make readers that have read the index read it again: messages are about to leave the archive."""
    connection.execute("UPDATE archive_state SET relaid = relaid + 1")


def replace_parts(
    connection: sqlite3.Connection, group_key: int, new_rows: Mapping[tuple[int, int, int], PartRow | None]
) -> None:
    """Replace or delete index rows of one group.

    ``new_rows``: the new rows by group key, lifetime and span; None deletes a row. With the last part of a group its
    senders are deleted from the index. If a deleted group has no messages left in either tier, so is its tombstone.
    """
    for key, row in new_rows.items():
        connection.execute("DELETE FROM archive_parts WHERE group_key = ? AND lifetime = ? AND span = ?", key)
        if row is not None:
            connection.execute("INSERT INTO archive_parts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values(row))
    if not holds_group(connection, group_key):
        connection.execute("DELETE FROM archive_senders WHERE group_key = ?", (group_key,))
        remove_tombstone(connection, group_key)


def forget_sender(connection: sqlite3.Connection, user_id: bytes, group_keys: Iterable[int]) -> None:
    """Record that only commits of a deleted account are left in the archive in these groups.

    The account's tombstone is deleted if it has no application messages left in either tier.
    """
    connection.executemany(
        "DELETE FROM archive_senders WHERE sender_id = ? AND group_key = ?", [(user_id, key) for key in group_keys]
    )
    remove_user_tombstone(connection, user_id)


def remove_tombstone(connection: sqlite3.Connection, group_key: int) -> None:
    """Remove the tombstone of a deleted group if none of its messages are left in either tier."""
    if not holds_group(connection, group_key):
        connection.execute(
            "DELETE FROM tombstones WHERE group_key = ?1 AND NOT EXISTS (SELECT 1 FROM messages WHERE group_key = ?1)",
            (group_key,),
        )


def remove_user_tombstone(connection: sqlite3.Connection, user_id: bytes) -> None:
    """Remove the tombstone of a deleted account if only commits of it are left in either tier.

    Without the tombstone, other messages would be served again.
    """
    if not holds_sender(connection, user_id):
        connection.execute(
            "DELETE FROM user_tombstones WHERE user_id = ?1"
            f" AND NOT EXISTS (SELECT 1 FROM {SENT} WHERE sender_id = ?1 AND NOT is_commit)",
            (user_id,),
        )
