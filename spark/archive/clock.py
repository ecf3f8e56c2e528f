"""Brings the times of archived messages back that lie ahead of a clock which was set right.

A message lies in the span of its time, so it goes to another part. Before that the index says that it may be there,
and readers who have looked at the index before look again; after it the index is made anew from what is there. The
table changes in one version: whatever stops this in between can be repeated.
"""

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow
from pyspark.sql import DataFrame, SparkSession, functions as F

from conclave.archive.layout import span_of, span_width
from conclave.failpoints import reach
from conclave.store.archive import moves
from conclave.store.archive.moves import PartRow
from spark.archive import columns as a
from spark.archive.expiry import settle
from spark.archive.table import Table, in_parts, part_columns
from spark.hot import Hot

ROWS_AT_ONCE = 256
"""So many rows of the index are made wider in one transaction."""

FOREVER = 2**63 - 1

Key = tuple[int, int, int]
"""A row of the index: group key, lifetime, span."""


@dataclass(frozen=True)
class Return:
    """Messages of a group from the second ``first`` (inclusive) to ``end`` (exclusive) become those of ``present``."""

    group_key: int
    first: int
    end: int
    present: int


def concerned(hot: Hot, returns: Collection[Return]) -> list[PartRow]:
    """Return the rows of the index that may have any of ``returns``."""
    of_group = {each.group_key: each for each in returns}
    return [part for part in hot.read(moves.parts) if _concerns(part, of_group.get(part.group_key))]


def bring_back(spark: SparkSession, hot: Hot, table: Table, returns: Collection[Return]) -> int:
    """Carry ``returns`` out, one a group, of which any is there; return how many messages were brought back."""
    of_group = {each.group_key: each for each in returns}
    parts = concerned(hot, returns)
    targets = [_target(part, of_group[part.group_key].present) for part in parts]
    for at in range(0, len(targets), ROWS_AT_ONCE):
        hot.write(moves.widen, targets[at : at + ROWS_AT_ONCE])
    reach("archive.clock_widened")
    keys = {(part.group_key, part.lifetime, part.span) for part in (*parts, *targets)}
    first = table.version() + 1
    group_keys = sorted({part.group_key for part in parts})
    changed = _rewrite(spark, table, [of_group[key] for key in group_keys], parts)
    reach("archive.clock_rewritten")
    table.make_durable(first)
    left: dict[Key, PartRow | None] = dict.fromkeys(keys)
    left |= {key: row for key, row in _index(table, keys).items() if key in keys}
    version = table.version()
    hot.write_steps(lambda connection: settle(connection, left, [], version))
    reach("archive.clock_settled")
    return changed


def _concerns(part: PartRow, wanted: Return | None) -> bool:
    return wanted is not None and part.newest >= wanted.first and part.oldest < wanted.end


def _target(part: PartRow, present: int) -> PartRow:
    """Return what the messages of ``part`` may add to the part in which they will lie: all of them."""
    return PartRow(
        part.group_key,
        part.lifetime,
        span_of(part.lifetime, present),
        part.first_seq,
        part.last_seq,
        present,
        present,
        part.message_count,
        part.body_bytes,
        0,
    )


def _rewrite(spark: SparkSession, table: Table, returns: Collection[Return], parts: Collection[PartRow]) -> int:
    columns = {
        a.GROUP_KEY: [each.group_key for each in returns],
        "first": [each.first for each in returns],
        "end": [each.end for each in returns],
        "present": [each.present for each in returns],
    }
    widths = " ".join(f"WHEN {each} THEN {span_width(each)}" for each in sorted({part.lifetime for part in parts}))
    width = f"CASE stored.{a.LIFETIME} {widths} END"
    touched = {(part.lifetime, part.span) for part in parts}
    F.broadcast(spark.createDataFrame(pyarrow.table(columns))).createOrReplaceTempView("clock_returns")
    try:
        merged = spark.sql(
            f"MERGE INTO {table.name} AS stored USING clock_returns AS returns"
            f" ON {in_parts(touched, 'stored.')} AND stored.{a.GROUP_KEY} = returns.{a.GROUP_KEY}"
            f" AND stored.{a.CREATED_AT} >= returns.first AND stored.{a.CREATED_AT} < returns.end"
            f" WHEN MATCHED THEN UPDATE SET {a.CREATED_AT} = returns.present,"
            f" {a.SPAN} = returns.present - returns.present % {width},"
            # What was damaged before must not look whole after it.
            f" {a.CHECKSUM} = CASE WHEN stored.{a.CHECKSUM} <=> {_checksum(f'stored.{a.CREATED_AT}')}"
            f" THEN {_checksum('returns.present')} ELSE stored.{a.CHECKSUM} END"
        )
        return int(merged.collect()[0]["num_updated_rows"])
    finally:
        spark.catalog.dropTempView("clock_returns")


def _checksum(created_at: str) -> str:
    """Return what ``archive_table.checksum`` says of a stored message with another time, as SQL."""
    columns = [created_at if name == a.CREATED_AT else f"stored.{name}" for name in a.CHECKED]
    return f"xxhash64({', '.join(columns)})"


def _index(table: Table, keys: Collection[Key]) -> dict[Key, PartRow]:
    """Return the rows of the index for the parts of ``keys``, and of groups of theirs, as they are in the table."""
    group_keys = [key[0] for key in keys]
    found: DataFrame = (
        table.read()
        .where(in_parts({key[1:] for key in keys}))
        .where(F.col(a.GROUP_KEY).between(min(group_keys), max(group_keys)))
        .groupBy(a.GROUP_KEY, a.LIFETIME, a.SPAN)
        .agg(*part_columns(F.col(a.CHECKSUM)))
    )
    return {(row[0], row[1], row[2]): PartRow(*row) for row in found.collect()}
