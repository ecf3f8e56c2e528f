"""Compares the whole archive with its index in the hot store. Requires the run lock."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from conclave.archive.integrity import Key, compare, group_names, partition_name
from conclave.store.archive import moves
from conclave.store.archive.moves import PartRow
from spark.archive import columns as a
from spark.archive.living import Living
from spark.archive.reclaim import readable_rows
from spark.hot_store import Hot
from spark.session import PAGE_SUMS


@dataclass
class Check:
    """The result of a check. ``differences``: one line each."""

    messages: int = 0
    body_bytes: int = 0
    index_rows: int = 0
    differences: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class IndexedPart:
    """The messages in the table that belong to one index row.

    ``row``: the expected index row, with a recomputed checksum. ``altered``: how many messages have a wrong
    checksum.
    """

    row: PartRow
    altered: int


def examine(spark: SparkSession, hot: Hot, rows: DataFrame, living: Living, group_key: int | None = None) -> Check:
    """Compare the readable ``rows`` of the table with the index, for one group or all.

    Ignores rows that are not in the index: they were erased, restored to the hot store, or are being moved.
    """
    parts = hot.read(moves.parts, group_key)
    index = {part.key: part for part in parts}
    rows = readable_rows(spark, rows, parts, living)
    with _without_page_sums(spark):
        table_parts, duplicates = _read(rows), _count_duplicates(rows)
    stored = {key: each.row for key, each in table_parts.items()}
    faults = compare(index, stored, {key: each.altered for key, each in table_parts.items()})
    names = hot.read(group_names, {key[0] for key in faults} | duplicates.keys())
    differences = [f"{names[key[0]]}, {partition_name(key)}: {line}" for key, lines in faults.items() for line in lines]
    differences += [
        f"{names[key]}: {count:,} numbers are there more than once" for key, count in sorted(duplicates.items())
    ]
    return Check(
        sum(row.message_count for row in stored.values()),
        sum(row.body_bytes for row in stored.values()),
        len(index),
        differences,
    )


@contextmanager
def _without_page_sums(spark: SparkSession) -> Iterator[None]:
    """Context manager that disables page checksums, to find damage by the checksums of messages. For reads only."""
    spark.conf.set(PAGE_SUMS, "false")
    try:
        yield
    finally:
        spark.conf.unset(PAGE_SUMS)


def _checksum() -> Column:
    """Return the checksum of a message, computed from its columns CHECKED."""
    return F.xxhash64(*a.CHECKED)


def _read(rows: DataFrame) -> dict[Key, IndexedPart]:
    number, created = F.col(a.SEQUENCE_NUM), F.col(a.CREATED_AT)
    totals = rows.groupBy(a.GROUP_KEY, a.LIFETIME, a.SPAN).agg(
        F.min(number),
        F.max(number),
        F.min(created),
        F.max(created),
        F.count(F.lit(1)),
        F.coalesce(F.sum(a.SIZE), F.lit(0)),
        F.bit_xor(_checksum()),
        F.count(F.when(~F.col(a.CHECKSUM).eqNullSafe(_checksum()), 1)),
    )
    return {(row[0], row[1], row[2]): IndexedPart(PartRow(*tuple(row)[:10]), row[10]) for row in totals.collect()}


def _count_duplicates(rows: DataFrame) -> dict[int, int]:
    """Return how many numbers occur more than once in each group. Omits groups without duplicates."""
    numbers = rows.groupBy(a.GROUP_KEY, a.SEQUENCE_NUM).count().where("count > 1")
    return {row[0]: row[1] for row in numbers.groupBy(a.GROUP_KEY).count().collect()}
