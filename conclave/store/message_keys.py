"""The database's records about its key file: the file's id, and the keys that are still to be destroyed."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from conclave.keys import tree
from conclave.keys.store import LAST_NUMBER, GroupRanges
from conclave.keys.tree import Range

OTHERS = bytes(16)
"""The pseudo group id under which non-message bodies are numbered. No group has it."""

NOTES_PER_READ = 20_000
"""At most 20,000 pending erasures are read at once."""


@dataclass(frozen=True)
class KeyState:
    """The key file of the database. ``is_settled``: False after a restore, until keys without bodies are destroyed.

    ``serial``: the newest of its changes on which the database relies. A file without that change lacks keys, or has
    destroyed ones.
    """

    keys_id: bytes
    is_settled: bool
    serial: int


def state(connection: sqlite3.Connection) -> KeyState | None:
    """Return the state of the key file; None if no server has run on the database, so that it has no bodies."""
    row = connection.execute("SELECT keys_id, settled, serial FROM key_state").fetchone()
    return KeyState(row[0], bool(row[1]), row[2]) if row else None


def adopt(connection: sqlite3.Connection, keys_id: bytes) -> None:
    """Bind the database permanently to a key file. No body has been stored before."""
    connection.execute("INSERT INTO key_state (id, keys_id) VALUES (1, ?)", (keys_id,))


def note_settled(connection: sqlite3.Connection, serial: int) -> None:
    """Record that the key file, as of its change ``serial``, has only keys of stored bodies."""
    connection.execute("UPDATE key_state SET settled = 1, serial = ?", (serial,))


def note_serial(connection: sqlite3.Connection, serial: int) -> None:
    """Record that the database relies on the change ``serial`` of the key file."""
    connection.execute("UPDATE key_state SET serial = ?1 WHERE serial < ?1", (serial,))


def note_unsettled(connection: sqlite3.Connection, serial: int) -> None:
    """Record that the key file, as of its change ``serial``, may have keys of bodies that a restore removed."""
    connection.execute("UPDATE key_state SET settled = 0, serial = ?", (serial,))


def note_erased(connection: sqlite3.Connection, group_key: int, numbers: Sequence[int]) -> None:
    """Record that the keys of ``numbers``, which are deleted in this transaction, are to be destroyed.

    The group, or its tombstone, must still exist.
    """
    note_erased_ranges(connection, group_key, tree.from_numbers(numbers))


def note_erased_ranges(connection: sqlite3.Connection, group_key: int, ranges: Iterable[Range]) -> None:
    """Like ``note_erased``, for ranges of numbers."""
    connection.executemany(
        "INSERT OR IGNORE INTO key_erasures (group_id, first_seq, last_seq) SELECT group_id, ?2, ?3 FROM"
        " (SELECT group_id FROM groups WHERE group_key = ?1 UNION ALL SELECT group_id FROM tombstones"
        " WHERE group_key = ?1) WHERE group_id != x''",
        [(group_key, *each) for each in ranges],
    )


def note_erased_others(connection: sqlite3.Connection, body_ids: Sequence[int]) -> None:
    """Like ``note_erased``, for non-message bodies."""
    connection.executemany(
        "INSERT OR IGNORE INTO key_erasures (group_id, first_seq, last_seq) VALUES (?, ?, ?)",
        [(OTHERS, *each) for each in tree.from_numbers(body_ids)],
    )


@dataclass(frozen=True)
class PendingErasures:
    """Keys that are to be destroyed: as ``rows`` of the table, and as ``ranges`` for ``KeyStore.erase``."""

    ranges: Sequence[GroupRanges]
    rows: Sequence[tuple[bytes, int, int]]


def pending_erasures(connection: sqlite3.Connection) -> PendingErasures | None:
    """Return at most NOTES_PER_READ keys that are to be destroyed; None if there are none."""
    rows = connection.execute(
        "SELECT group_id, first_seq, last_seq FROM key_erasures ORDER BY group_id, first_seq, last_seq LIMIT ?",
        (NOTES_PER_READ,),
    ).fetchall()
    ranges_by_group: dict[bytes, list[Range]] = {}
    for group_id, first, last in rows:
        ranges_by_group.setdefault(group_id, []).append(Range(first, last))
    ranges = [(group_id, tree.union(group_ranges)) for group_id, group_ranges in ranges_by_group.items()]
    return PendingErasures(ranges, [(row[0], row[1], row[2]) for row in rows]) if rows else None


def pending_by_group(connection: sqlite3.Connection) -> dict[bytes, list[Range]]:
    """Return all numbers whose keys are to be destroyed, by group id."""
    ranges_by_group: dict[bytes, list[Range]] = {}
    for group_id, pending in pending_ranges(connection):
        ranges_by_group.setdefault(group_id, []).append(pending)
    return {group_id: tree.union(pending) for group_id, pending in ranges_by_group.items()}


def group_ids(connection: sqlite3.Connection) -> dict[int, bytes]:
    """Return the ids of all groups, including deleted ones, by group key."""
    rows = connection.execute(
        "SELECT group_key, group_id FROM groups UNION ALL SELECT group_key, group_id FROM tombstones"
    )
    return {row[0]: row[1] for row in rows}


def make_durable(connection: sqlite3.Connection) -> None:
    """Write without changing anything, so that the commit makes all earlier transactions durable."""
    connection.execute("UPDATE key_state SET settled = settled")


def remove_pending(connection: sqlite3.Connection, rows: Sequence[tuple[bytes, int, int]], serial: int) -> None:
    """Remove rows of ``pending_erasures`` once the keys are destroyed, by a change up to ``serial`` of the key file.

    Rows that were added since then stay.
    """
    note_serial(connection, serial)
    connection.executemany("DELETE FROM key_erasures WHERE group_id = ? AND first_seq = ? AND last_seq = ?", rows)


def living(
    connection: sqlite3.Connection, archived: Mapping[int, Sequence[Range]] | None = None
) -> Iterator[tuple[GroupRanges, Range | None]]:
    """Yield for each group, and for OTHERS, the numbers of its stored bodies, and the range not yet assigned.

    Deleted groups assign no numbers, so their range is None. ``archived``: the numbers in the archive, by group key;
    None: all numbers between the first and the last of each archive part count as stored.
    """
    groups = connection.execute(
        "SELECT group_key, group_id, last_seq FROM groups UNION ALL SELECT group_key, group_id, NULL FROM tombstones"
    ).fetchall()
    for group_key, group_id, last in groups:
        archived_ranges: Sequence[tuple[int, int]]
        if archived is None:
            parts = connection.execute(
                "SELECT first_seq, last_seq FROM archive_parts WHERE group_key = ?", (group_key,)
            )
            archived_ranges = [(row[0], row[1]) for row in parts]
        else:
            archived_ranges = archived.get(group_key, ())
        hot_rows = connection.execute(
            "SELECT sequence_num FROM messages WHERE group_key = ? ORDER BY sequence_num", (group_key,)
        )
        stored = tree.union([*tree.from_numbers(row[0] for row in hot_rows), *archived_ranges])
        yield (group_id, stored), Range(last + 1, LAST_NUMBER) if last is not None else None
    rows = connection.execute("SELECT body_id FROM bodies ORDER BY body_id")
    yield (OTHERS, tree.from_numbers(row[0] for row in rows)), _future_of_others(connection)


def never_used(connection: sqlite3.Connection) -> Iterator[tuple[bytes, Range]]:
    """Yield the numbers that no body ever had: group ids, and ranges in any order.

    These are 0, and the numbers not yet assigned.
    """
    for group_id, last in connection.execute("SELECT group_id, last_seq FROM groups"):
        yield group_id, Range(0, 0)
        yield group_id, Range(last + 1, LAST_NUMBER)
    yield OTHERS, Range(0, 0)
    yield OTHERS, _future_of_others(connection)
    for (group_id,) in connection.execute("SELECT group_id FROM tombstones"):
        yield group_id, Range(0, 0)


def pending_ranges(connection: sqlite3.Connection) -> Iterator[tuple[bytes, Range]]:
    """Yield the numbers whose keys the next run destroys: group ids, and ranges in any order."""
    for group_id, first, last in connection.execute("SELECT group_id, first_seq, last_seq FROM key_erasures"):
        yield group_id, Range(first, last)


def _future_of_others(connection: sqlite3.Connection) -> Range:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'bodies'").fetchone()
    return Range((row[0] if row else 0) + 1, LAST_NUMBER)


def count(connection: sqlite3.Connection) -> int:
    """Count the messages served to clients from both tiers. Archived ones are counted by the index."""
    row = connection.execute(
        "SELECT (SELECT count(*) FROM groups JOIN messages USING (group_key) WHERE sequence_num > archived_seq)"
        " + (SELECT ifnull(sum(message_count), 0) FROM groups JOIN archive_parts USING (group_key))"
    ).fetchone()
    return int(row[0])
