"""Brings back times of archived messages that a fast clock wrote and that lie in the future.

A message lies in the span of its time, so a message with a new time goes to another partition. Before that, the index
says that the message may be there too, and readers who read the index earlier look again. After that, the index rows
are made again from the table. The table changes in one version, so after an interruption all can be repeated.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

import pyarrow
from pyspark.sql import DataFrame, SparkSession, functions as F

from conclave.archive.layout import in_partitions, span_of, span_width
from conclave.failpoints import reach
from conclave.store import message_keys
from conclave.store.archive import erasures, moves
from conclave.store.archive.moves import PartRow
from spark.archive import columns as a, lost_keys
from spark.archive.expiry import confirm, settle
from spark.archive.spark_eraser import SparkEraser
from spark.archive.table import Table
from spark.hot_store import Hot

ROWS_AT_ONCE = 256
"""At most 256 rows of the index are widened in a transaction."""

FOREVER = 2**63 - 1
"""A Unix second after all others: the greatest 64-bit integer."""

Key = tuple[int, int, int]
"""A row of the index: group key, lifetime, span."""


@dataclass(frozen=True)
class Return:
    """A change of times: messages of a group with times from ``first`` to ``end`` get the time ``present``.

    All are Unix seconds; ``first`` is inclusive, ``end`` exclusive.
    """

    group_key: int
    first: int
    end: int
    present: int


def concerned(hot: Hot, returns: Collection[Return]) -> list[PartRow]:
    """Return the rows of the index that may have messages of any of ``returns``."""
    of_group = {each.group_key: each for each in returns}
    return [part for part in hot.read(moves.parts) if _concerns(part, of_group.get(part.group_key))]


def left_wide(hot: Hot) -> list[PartRow]:
    """Return the rows that were made or widened for messages that were about to come, and not made again since.

    An interruption leaves them, and what is ahead later may be something else.
    """
    return [part for part in hot.read(moves.parts) if not part.checksum]


def bring_back(spark: SparkSession, hot: Hot, table: Table, returns: Collection[Return]) -> int:
    """Carry out ``returns``, and settle what an interruption has left; return how many messages were brought back.

    ``returns``: at most one for each group.
    """
    of_group = {each.group_key: each for each in returns}
    parts = concerned(hot, returns)
    unsettled = _meeting(hot, (*parts, *left_wide(hot)))
    _confirm(hot, table, parts)
    targets = [_target(part, of_group[part.group_key].present) for part in parts]
    for at in range(0, len(targets), ROWS_AT_ONCE):
        hot.write(moves.widen, targets[at : at + ROWS_AT_ONCE])
    reach("archive.clock_widened")
    keys = {(part.group_key, part.lifetime, part.span) for part in (*unsettled, *targets)}
    first = table.version() + 1
    group_keys = sorted({part.group_key for part in parts})
    changed = _rewrite(spark, table, [of_group[key] for key in group_keys], parts) if parts else 0
    reach("archive.clock_rewritten")
    table.make_durable(first)
    left: dict[Key, PartRow | None] = dict.fromkeys(keys)
    left |= {key: row for key, row in index_of(table, keys).items() if key in keys}
    version = table.version()
    # What a run that did not end has erased is missing in the table still, and its keys are lost here.
    stays = lost_keys.living(SparkEraser(spark, table), hot, left, ())
    dead = _dead(spark, hot, table, keys)
    hot.write_steps(lambda connection: settle(connection, left, [], version, {}, {}, stays, dead))
    reach("archive.clock_settled")
    return changed


def _dead(spark: SparkSession, hot: Hot, table: Table, keys: Collection[Key]) -> dict[Key, int]:
    """Return how many messages of each of these rows of the index cannot be read, of which receipts have told."""
    group_keys = {key[0] for key in keys}
    lost = {key: number for key, number in hot.read(message_keys.lost_up_to).items() if key in group_keys}
    if not lost:
        return {}
    bounds = pyarrow.table({a.GROUP_KEY: list(lost), a.DEAD_UP_TO: list(lost.values())})
    found = (
        table.read()
        .where(in_partitions({key[1:] for key in keys}))
        .where(F.col(a.GROUP_KEY).between(min(lost), max(lost)))
        .join(F.broadcast(spark.createDataFrame(bounds)), a.GROUP_KEY)
        .where(F.col(a.SEQUENCE_NUM) <= F.col(a.DEAD_UP_TO))
        .groupBy(a.GROUP_KEY, a.LIFETIME, a.SPAN)
        .count()
    )
    return dict.fromkeys(keys, 0) | {(row[0], row[1], row[2]): row[3] for row in found.collect()}


def _confirm(hot: Hot, table: Table, parts: Collection[PartRow]) -> None:
    """Note what a run that did not end has erased, while the partitions still tell it."""
    group_keys = {part.group_key for part in parts}
    present = {key: 0 for key in hot.read(erasures.foreseen) if key[0] in group_keys}
    if present:
        found = index_of(table, present)
        present |= {key: found[key].message_count for key in present if key in found}
        hot.write_steps(partial(confirm, present=present))
        hot.write(_forget, present)  # it never went, and what moves away now is not to be taken for gone


def _forget(connection: sqlite3.Connection, keys: Collection[Key]) -> None:
    for key in keys:
        erasures.forget(connection, key)


def _concerns(part: PartRow, wanted: Return | None) -> bool:
    return wanted is not None and part.newest >= wanted.first and part.oldest < wanted.end


def _meeting(hot: Hot, some: Collection[PartRow]) -> list[PartRow]:
    """Return these rows, and those of their groups with numbers in between: messages go from one to another."""
    of_groups: dict[int, list[PartRow]] = defaultdict(list)
    for part in some:
        of_groups[part.group_key].append(part)
    return [
        part
        for part in hot.read(moves.parts)
        if any(
            part.first_seq <= each.last_seq and each.first_seq <= part.last_seq
            for each in of_groups.get(part.group_key, ())
        )
    ]


def _target(part: PartRow, present: int) -> PartRow:
    """Return the part in which messages of ``part`` will lie, as wide as if all of them went there."""
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
    table.require_all_read(touched)
    F.broadcast(spark.createDataFrame(pyarrow.table(columns))).createOrReplaceTempView("clock_returns")
    try:
        merged = spark.sql(
            f"MERGE INTO {table.name} AS stored USING clock_returns AS returns"
            f" ON {in_partitions(touched, 'stored.')} AND stored.{a.GROUP_KEY} = returns.{a.GROUP_KEY}"
            f" AND stored.{a.CREATED_AT} >= returns.first AND stored.{a.CREATED_AT} < returns.end"
            f" WHEN MATCHED THEN UPDATE SET {a.CREATED_AT} = returns.present,"
            f" {a.SPAN} = returns.present - returns.present % {width},"
            # A message that was damaged before must not get a right checksum now.
            f" {a.CHECKSUM} = CASE WHEN stored.{a.CHECKSUM} <=> {_checksum(f'stored.{a.CREATED_AT}')}"
            f" THEN {_checksum('returns.present')} ELSE stored.{a.CHECKSUM} END"
        )
        return int(merged.collect()[0]["num_updated_rows"])
    finally:
        spark.catalog.dropTempView("clock_returns")


def _checksum(created_at: str) -> str:
    """Return the SQL for the checksum of a stored message with the time ``created_at``."""
    columns = [created_at if name == a.CREATED_AT else f"stored.{name}" for name in a.CHECKED]
    return f"xxhash64({', '.join(columns)})"


def index_of(table: Table, keys: Collection[Key]) -> dict[Key, PartRow]:
    """Return rows of the index as the table has them: all of ``keys`` that have messages.

    There may be more: rows of other groups in the same partitions. Raises ArchiveError if not all can be read.
    """
    table.require_all_read({key[1:] for key in keys})
    group_keys, number, created = [key[0] for key in keys], F.col(a.SEQUENCE_NUM), F.col(a.CREATED_AT)
    found: DataFrame = (
        table.read()
        .where(in_partitions({key[1:] for key in keys}))
        .where(F.col(a.GROUP_KEY).between(min(group_keys), max(group_keys)))
        .groupBy(a.GROUP_KEY, a.LIFETIME, a.SPAN)
        .agg(
            F.min(number),
            F.max(number),
            F.min(created),
            F.max(created),
            F.count(number),
            F.sum(F.octet_length(a.BODY)),
            F.bit_xor(F.col(a.CHECKSUM)),
        )
    )
    return {(row[0], row[1], row[2]): PartRow(*row) for row in found.collect()}
