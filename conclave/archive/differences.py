"""Says in lines how the archive differs from what the database knows of it, by any reader of the archive."""

import sqlite3
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from uuid import UUID

from conclave.retention.durations import duration_text
from conclave.retention.policy import KEEP
from conclave.store.archive.moves import PartRow

Key = tuple[int, int, int]
"""A row of the index: group key, lifetime, span."""


def compare(
    index: Mapping[Key, PartRow], found: Mapping[Key, PartRow], altered: Mapping[Key, int]
) -> dict[Key, list[str]]:
    """Return the differences, by rows of the index that have any.

    ``found``: what the table has. ``altered``: how many messages do not have the checksum that they were archived with.
    """
    faults = {key: _of_row(index.get(key), found.get(key), altered.get(key, 0)) for key in index.keys() | found.keys()}
    return {key: faults[key] for key in sorted(faults) if faults[key]}


def _of_row(indexed: PartRow | None, row: PartRow | None, altered: int) -> list[str]:
    if row is None:
        return [f"all {indexed.message_count:,} messages are missing"] if indexed else []
    if indexed is None:
        return [f"{row.message_count:,} messages that the index does not know"]
    faults = []
    if altered:
        faults.append(f"{altered:,} messages are not as they were archived")
    if row.message_count != indexed.message_count:
        faults.append(f"{row.message_count:,} messages, where the index has {indexed.message_count:,}")
    elif row.checksum != indexed.checksum and not altered:
        faults.append("the messages are not those that were archived: the checksum differs")
    if not faults and not _covers(indexed, row):
        faults.append("the index is narrower than what is there, so readers may miss some of it")
    return faults


def _covers(indexed: PartRow, row: PartRow) -> bool:
    """Tell whether the bounds in the index, by which readers search, cover all that is stored."""
    return (
        indexed.first_seq <= row.first_seq
        and indexed.last_seq >= row.last_seq
        and indexed.oldest <= row.oldest
        and indexed.newest >= row.newest
        and indexed.body_bytes >= row.body_bytes
    )


def names(connection: sqlite3.Connection, group_keys: Collection[int]) -> dict[int, str]:
    """Return what groups are called in such lines, by their keys."""
    found = {}
    for group_key in group_keys:
        row = connection.execute("SELECT group_id FROM groups WHERE group_key = ?", (group_key,)).fetchone()
        found[group_key] = f"group {UUID(bytes=row[0])}" if row else f"deleted group (key {group_key})"
    return found


def place(key: Key) -> str:
    """Return how a row of the index is called in such lines."""
    kept = "kept" if key[1] == KEEP else f"kept for {duration_text(key[1])}"
    return f"{kept}, from {datetime.fromtimestamp(key[2], UTC):%Y-%m-%d}"
