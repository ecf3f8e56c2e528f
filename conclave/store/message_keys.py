"""What the database knows of the key file: which one is its own, and which keys are still to be lost."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from conclave.keys import tree
from conclave.keys.store import LAST_NUMBER, GroupRanges
from conclave.keys.tree import Range

OTHERS = bytes(16)
"""Bodies that are not messages' are numbered under this id, as those of a group are; no group has it."""

NOTES_AT_ONCE = 20_000
"""At most 20,000 notes are read at once."""


@dataclass(frozen=True)
class KeyState:
    """The key file of the database. ``is_settled``: it has no keys of what a restore took back.

    ``serial``: the newest of its changes that the database relies on. A file without it lacks keys, or has some that
    were destroyed.
    """

    keys_id: bytes
    is_settled: bool
    serial: int


def state(connection: sqlite3.Connection) -> KeyState | None:
    """Return which key file is the database's; None: no server has run on it, and it has no bodies."""
    row = connection.execute("SELECT keys_id, settled, serial FROM key_state").fetchone()
    return KeyState(row[0], bool(row[1]), row[2]) if row else None


def adopt(connection: sqlite3.Connection, keys_id: bytes) -> None:
    """Note which key file is the database's, for as long as it lives. No body was stored before."""
    connection.execute("INSERT INTO key_state (id, keys_id) VALUES (1, ?)", (keys_id,))


def note_settled(connection: sqlite3.Connection, serial: int) -> None:
    """Note that the key file, as of its change ``serial``, has no keys but those of what lives."""
    connection.execute("UPDATE key_state SET settled = 1, serial = ?", (serial,))


def note_serial(connection: sqlite3.Connection, serial: int) -> None:
    """Note that the database relies on the change ``serial`` of the key file."""
    connection.execute("UPDATE key_state SET serial = ?1 WHERE serial < ?1", (serial,))


def note_unsettled(connection: sqlite3.Connection, serial: int) -> None:
    """Note that the key file, as of its change ``serial``, may have keys of what a restore took back."""
    connection.execute("UPDATE key_state SET settled = 0, serial = ?", (serial,))


def note(connection: sqlite3.Connection, group_key: int, numbers: Sequence[int]) -> None:
    """Note that the keys of ``numbers``, which are deleted in this transaction, are to be destroyed.

    The group, or its tombstone, has to be there still.
    """
    note_ranges(connection, group_key, tree.of(numbers))


def note_ranges(connection: sqlite3.Connection, group_key: int, dead: Iterable[Range]) -> None:
    """Do as ``note``, for ranges of numbers."""
    connection.executemany(
        "INSERT OR IGNORE INTO key_erasures (group_id, first_seq, last_seq) SELECT group_id, ?2, ?3 FROM"
        " (SELECT group_id FROM groups WHERE group_key = ?1 UNION ALL SELECT group_id FROM tombstones"
        " WHERE group_key = ?1) WHERE group_id != x''",
        [(group_key, *each) for each in dead],
    )


def note_others(connection: sqlite3.Connection, body_ids: Sequence[int]) -> None:
    """Do as ``note`` for bodies that are not messages'."""
    connection.executemany(
        "INSERT OR IGNORE INTO key_erasures (group_id, first_seq, last_seq) VALUES (?, ?, ?)",
        [(OTHERS, *each) for each in tree.of(body_ids)],
    )


@dataclass(frozen=True)
class PendingErasures:
    """Keys that are to be lost: the notes, as ``rows`` and ``told`` as ``KeyStore.erase`` wants it."""

    told: Sequence[GroupRanges]
    rows: Sequence[tuple[bytes, int, int]]


def noted(connection: sqlite3.Connection) -> PendingErasures | None:
    """Return keys that are to be lost; None: nothing is noted."""
    rows = connection.execute(
        "SELECT group_id, first_seq, last_seq FROM key_erasures ORDER BY group_id, first_seq, last_seq LIMIT ?",
        (NOTES_AT_ONCE,),
    ).fetchall()
    found: dict[bytes, list[Range]] = {}
    for group_id, first, last in rows:
        found.setdefault(group_id, []).append(Range(first, last))
    told = [(group_id, tree.joined(some)) for group_id, some in found.items()]
    return PendingErasures(told, [(row[0], row[1], row[2]) for row in rows]) if rows else None


def noted_by_group(connection: sqlite3.Connection) -> dict[bytes, list[Range]]:
    """Return all numbers whose keys are to be lost, by ids of groups."""
    found: dict[bytes, list[Range]] = {}
    for group_id, some in waiting(connection):
        found.setdefault(group_id, []).append(some)
    return {group_id: tree.joined(some) for group_id, some in found.items()}


def group_ids(connection: sqlite3.Connection) -> dict[int, bytes]:
    """Return the ids of all groups, deleted or not, by their keys."""
    rows = connection.execute(
        "SELECT group_key, group_id FROM groups UNION ALL SELECT group_key, group_id FROM tombstones"
    )
    return {row[0]: row[1] for row in rows}


def make_durable(connection: sqlite3.Connection) -> None:
    """Change nothing, but write: with this transaction all before it are on the disk."""
    connection.execute("UPDATE key_state SET settled = settled")


def forget(connection: sqlite3.Connection, rows: Sequence[tuple[bytes, int, int]], serial: int) -> None:
    """Remove the notes that ``noted`` has told, once the keys are lost, by a change up to ``serial`` of the key file.

    What was noted meanwhile stays.
    """
    note_serial(connection, serial)
    connection.executemany("DELETE FROM key_erasures WHERE group_id = ? AND first_seq = ? AND last_seq = ?", rows)


def living(
    connection: sqlite3.Connection, archived: Mapping[int, Sequence[Range]] | None = None
) -> Iterator[tuple[GroupRanges, Range | None]]:
    """Yield of each group that there is its messages, and the numbers that it has not given yet; the same of OTHERS.

    A deleted group gives none. ``archived``: the numbers that the archive has, by keys of groups; None: of each part
    all between the first and the last one count.
    """
    groups = connection.execute(
        "SELECT group_key, group_id, last_seq FROM groups UNION ALL SELECT group_key, group_id, NULL FROM tombstones"
    ).fetchall()
    for group_key, group_id, last in groups:
        cold: Sequence[tuple[int, int]]
        if archived is None:
            parts = connection.execute(
                "SELECT first_seq, last_seq FROM archive_parts WHERE group_key = ?", (group_key,)
            )
            cold = [(row[0], row[1]) for row in parts]
        else:
            cold = archived.get(group_key, ())
        hot = connection.execute(
            "SELECT sequence_num FROM messages WHERE group_key = ? ORDER BY sequence_num", (group_key,)
        )
        alive = tree.joined([*tree.of(row[0] for row in hot), *cold])
        yield (group_id, alive), Range(last + 1, LAST_NUMBER) if last is not None else None
    rows = connection.execute("SELECT body_id FROM bodies ORDER BY body_id")
    yield (OTHERS, tree.of(row[0] for row in rows)), _future_of_others(connection)


def unused(connection: sqlite3.Connection) -> Iterator[tuple[bytes, Range]]:
    """Yield the numbers whose keys no body was ever under: ids of groups, ranges in any order.

    They are 0, and those that were not given yet.
    """
    for group_id, last in connection.execute("SELECT group_id, last_seq FROM groups"):
        yield group_id, Range(0, 0)
        yield group_id, Range(last + 1, LAST_NUMBER)
    yield OTHERS, Range(0, 0)
    yield OTHERS, _future_of_others(connection)
    for (group_id,) in connection.execute("SELECT group_id FROM tombstones"):
        yield group_id, Range(0, 0)


def waiting(connection: sqlite3.Connection) -> Iterator[tuple[bytes, Range]]:
    """Yield the numbers whose keys the next run loses: ids of groups, ranges in any order."""
    for group_id, first, last in connection.execute("SELECT group_id, first_seq, last_seq FROM key_erasures"):
        yield group_id, Range(first, last)


def _future_of_others(connection: sqlite3.Connection) -> Range:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'bodies'").fetchone()
    return Range((row[0] if row else 0) + 1, LAST_NUMBER)


def count(connection: sqlite3.Connection) -> int:
    """Count the messages that clients are served, in both tiers. The archive's are counted by its index."""
    row = connection.execute(
        "SELECT (SELECT count(*) FROM groups JOIN messages USING (group_key) WHERE sequence_num > archived_seq)"
        " + (SELECT ifnull(sum(message_count), 0) FROM groups JOIN archive_parts USING (group_key))"
    ).fetchone()
    return int(row[0])
