"""Checks the archive: reads all of it, and compares it with the index in the hot store.

Neither may change meanwhile: the caller holds the run lock.
"""

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from pyspark.sql import DataFrame, SparkSession, functions as F

from conclave.retention.durations import duration_text
from conclave.retention.policy import KEEP
from conclave.store.archive import moves
from conclave.store.archive.moves import PartRow
from spark.archive import columns as a
from spark.archive.table import checksum, without_page_sums
from spark.hot import Hot

Key = tuple[int, int, int]
"""A row of the index: group key, lifetime, span."""

_MOVING = "group_key BIGINT, first_seq BIGINT, last_seq BIGINT"


@dataclass
class Check:
    """The result of a check: what was read. ``differences``: one line for each difference."""

    messages: int = 0
    body_bytes: int = 0
    index_rows: int = 0
    differences: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Found:
    """What the table has for one row of the index, with checksums computed again.

    ``altered``: how many messages do not have the checksum with which they were archived.
    """

    row: PartRow
    altered: int


def examine(spark: SparkSession, hot: Hot, rows: DataFrame, group_key: int | None = None) -> Check:
    """Compare ``rows`` of the table with the index, for one group or for all.

    Messages of a batch under way are left out until their group has switched to the archive.
    """
    index = {(row.group_key, row.lifetime, row.span): row for row in hot.read(moves.parts, group_key)}
    moving = hot.read(moves.unswitched)
    if group_key is not None:
        rows = rows.where(F.col(a.GROUP_KEY) == group_key)
    if moving:
        ranges = F.broadcast(
            spark.createDataFrame([(each.group_key, each.first_seq, each.last_seq) for each in moving], _MOVING)
        )
        is_moving = (rows[a.GROUP_KEY] == ranges["group_key"]) & rows[a.SEQUENCE_NUM].between(
            ranges["first_seq"], ranges["last_seq"]
        )
        rows = rows.join(ranges, is_moving, "left_anti")
    with without_page_sums(spark):
        found, doubles = _read(rows), _find_doubles(rows)
    faults: dict[Key, list[str]] = {}
    for key in index.keys() | found.keys():
        if lines := _compare(index.get(key), found.get(key)):
            faults[key] = lines
    names = hot.read(_names, {key[0] for key in faults} | doubles.keys())
    differences = [f"{names[key[0]]}, {_place(key)}: {line}" for key in sorted(faults) for line in faults[key]]
    differences += [
        f"{names[key]}: {count:,} numbers are there more than once" for key, count in sorted(doubles.items())
    ]
    stored = [each.row for each in found.values()]
    return Check(
        sum(row.message_count for row in stored), sum(row.body_bytes for row in stored), len(index), differences
    )


def _read(rows: DataFrame) -> dict[Key, Found]:
    number, created = F.col(a.SEQUENCE_NUM), F.col(a.CREATED_AT)
    found = rows.groupBy(a.GROUP_KEY, a.LIFETIME, a.SPAN).agg(
        F.min(number),
        F.max(number),
        F.min(created),
        F.max(created),
        F.count(F.lit(1)),
        F.coalesce(F.sum(F.octet_length(a.BODY)), F.lit(0)),
        F.bit_xor(checksum()),
        F.count(F.when(~F.col(a.CHECKSUM).eqNullSafe(checksum()), 1)),
    )
    return {(row[0], row[1], row[2]): Found(PartRow(*tuple(row)[:10]), row[10]) for row in found.collect()}


def _find_doubles(rows: DataFrame) -> dict[int, int]:
    """Return for each group how many of its numbers occur more than once; only groups with any."""
    numbers = rows.groupBy(a.GROUP_KEY, a.SEQUENCE_NUM).count().where("count > 1")
    return {row[0]: row[1] for row in numbers.groupBy(a.GROUP_KEY).count().collect()}


def _compare(indexed: PartRow | None, found: Found | None) -> list[str]:
    """Return the differences for one row of the index, one line each."""
    if found is None:
        return [f"all {indexed.message_count:,} messages are missing"] if indexed else []
    row = found.row
    if indexed is None:
        return [f"{row.message_count:,} messages that the index does not know"]
    faults = []
    if found.altered:
        faults.append(f"{found.altered:,} messages are not as they were archived")
    if row.message_count != indexed.message_count:
        faults.append(f"{row.message_count:,} messages, where the index has {indexed.message_count:,}")
    elif row.checksum != indexed.checksum and not found.altered:
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


def _names(connection: sqlite3.Connection, group_keys: Collection[int]) -> dict[int, str]:
    names = {}
    for group_key in group_keys:
        row = connection.execute("SELECT group_id FROM groups WHERE group_key = ?", (group_key,)).fetchone()
        names[group_key] = f"group {UUID(bytes=row[0])}" if row else f"deleted group (key {group_key})"
    return names


def _place(key: Key) -> str:
    kept = "kept" if key[1] == KEEP else f"kept for {duration_text(key[1])}"
    return f"{kept}, from {datetime.fromtimestamp(key[2], UTC):%Y-%m-%d}"
