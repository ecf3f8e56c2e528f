"""Checks the archive without Spark: the checksum of each message, and the totals in the database's index.

Differences between the archive and the index are reported as lines of text.
"""

import sqlite3
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from uuid import UUID

import pyarrow
from deltalake.exceptions import DeltaError
from pyarrow import parquet

from conclave.archive.faults import UnreadableArchiveError, one_line
from conclave.archive.layout import checksums
from conclave.archive.scan import batches, by_rows
from conclave.archive.snapshot import open_table
from conclave.retention.durations import duration_text
from conclave.retention.policy import KEEP
from conclave.store.archive.moves import PartRow

Key = tuple[int, int, int]
"""A row of the index: group key, lifetime, span."""


def compare(
    index: Mapping[Key, PartRow], found: Mapping[Key, PartRow], altered: Mapping[Key, int]
) -> dict[Key, list[str]]:
    """Return the differences by index row. Rows without differences are omitted.

    ``found``: the rows computed from the table. ``altered``: how many messages have a wrong checksum.
    """
    faults = {
        key: _row_faults(index.get(key), found.get(key), altered.get(key, 0)) for key in index.keys() | found.keys()
    }
    return {key: faults[key] for key in sorted(faults) if faults[key]}


def _row_faults(indexed: PartRow | None, found: PartRow | None, altered: int) -> list[str]:
    if found is None:
        return [f"all {indexed.message_count:,} messages are missing"] if indexed else []
    if indexed is None:
        return [f"{found.message_count:,} messages are not in the index"]
    faults = []
    if altered:
        faults.append(f"{altered:,} messages are damaged: their checksums differ")
    if found.message_count != indexed.message_count:
        faults.append(f"{found.message_count:,} messages, but the index has {indexed.message_count:,}")
    elif found.checksum != indexed.checksum and not altered:
        faults.append("the messages are not those that were archived: the total checksum differs")
    if not faults and not _covers(indexed, found):
        faults.append("the bounds in the index are too narrow, so readers may miss messages")
    return faults


def _covers(indexed: PartRow, row: PartRow) -> bool:
    """Return whether the bounds in the index, which readers use, cover all stored messages."""
    return (
        indexed.first_seq <= row.first_seq
        and indexed.last_seq >= row.last_seq
        and indexed.oldest <= row.oldest
        and indexed.newest >= row.newest
        and indexed.body_bytes >= row.body_bytes
    )


def group_names(connection: sqlite3.Connection, group_keys: Collection[int]) -> dict[int, str]:
    """Return names of groups for reports, by key."""
    names = {}
    for group_key in group_keys:
        row = connection.execute("SELECT group_id FROM groups WHERE group_key = ?", (group_key,)).fetchone()
        names[group_key] = f"group {UUID(bytes=row[0])}" if row else f"deleted group (key {group_key})"
    return names


def partition_name(key: Key) -> str:
    """Return the name of an index row's partition for reports."""
    kept = "kept" if key[1] == KEEP else f"kept for {duration_text(key[1])}"
    return f"{kept}, from {datetime.fromtimestamp(key[2], UTC):%Y-%m-%d}"


ROWS_AT_ONCE = 256
"""How many messages of a file are decoded at once: bodies may be large."""

_COLUMNS = ["group_key", "sequence_num", "sender_id", "is_commit", "created_at", "mls_message", "checksum"]

_SUMMARY = (
    "SELECT group_key, lifetime, span, min(sequence_num) AS first_seq, max(sequence_num) AS last_seq,"
    " min(created_at) AS oldest, max(created_at) AS newest, count(*) AS message_count, 0 AS body_bytes,"
    " bit_xor(checksum) AS checksum FROM archive GROUP BY group_key, lifetime, span ORDER BY group_key, span, lifetime"
)


def altered_in(path: Path) -> Counter[int]:
    """Return how many messages of a data file have a wrong checksum, by group. Raises UnreadableArchiveError."""
    counts: Counter[int] = Counter()
    try:
        with parquet.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=_COLUMNS):
                    *columns, stored = (batch.column(name).to_pylist() for name in _COLUMNS)
                    for key, computed, expected in zip(
                        columns[0], checksums(zip(*columns, strict=True)), stored, strict=True
                    ):
                        if computed != expected:
                            counts[key] += 1
    # Damaged bytes may decode to missing columns or values.
    except (pyarrow.ArrowException, OSError, KeyError, TypeError, struct.error) as error:
        raise UnreadableArchiveError(one_line(error)) from error
    return counts


def index_faults(
    folder: Path, index: Iterable[PartRow], unreadable: Mapping[tuple[int, int], int]
) -> dict[Key, list[str]]:
    """Return the differences between the table in ``folder`` and the index, by index row. Reads no bodies.

    ``index``: ordered by group, span and lifetime. Both sides may have millions of rows; only differences are kept in
    memory. ``unreadable``: how many messages of each partition (lifetime, span) the table has, but the index has not
    any more: erased ones, and those moved back to the hot store. Their rows are counted, since only keys tell them from
    the others. Differences are faults only after a completed run. Raises UnreadableArchiveError.
    """
    faults: dict[Key, list[str]] = {}
    surplus: Counter[tuple[int, int]] = Counter()
    first_keys: dict[tuple[int, int], Key] = {}
    try:
        query = by_rows(open_table(folder))
        found = (PartRow(**row) for batch in batches(query, _SUMMARY) for row in batch.to_pylist())
        for _, rows in groupby(merge(_with_keys(index, 0), _with_keys(found, 1)), key=itemgetter(0)):
            sides: tuple[dict[Key, PartRow], dict[Key, PartRow]] = {}, {}
            for _, side, row in rows:
                sides[side][row.group_key, row.lifetime, row.span] = row
            for key, row in list(sides[1].items()):
                more = row.message_count - (sides[0][key].message_count if key in sides[0] else 0)
                if more > 0 and key[1:] in unreadable:
                    surplus[key[1:]] += more
                    first_keys.setdefault(key[1:], key)
                    for side_rows in sides:
                        side_rows.pop(key, None)
            faults |= compare(*sides, {})
    except (DeltaError, pyarrow.ArrowException, OSError) as error:
        raise UnreadableArchiveError(one_line(error)) from error
    for partition, key in first_keys.items():
        if surplus[partition] != unreadable[partition]:
            faults[key] = [
                f"the partition has {surplus[partition]:,} messages that are not in the index, but"
                f" {unreadable[partition]:,} were erased or moved back"
            ]
    return faults


def _with_keys(rows: Iterable[PartRow], side: int) -> Iterator[tuple[Key, int, PartRow]]:
    return (((row.group_key, row.span, row.lifetime), side, row) for row in rows)
