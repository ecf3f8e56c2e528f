"""Checks the archive: reads all of it, and compares it with the index in the hot store.

Neither may change meanwhile: the caller holds the run lock.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from conclave.archive.integrity import Key, compare, group_names, partition_name
from conclave.store.archive import moves
from conclave.store.archive.moves import PartRow
from spark.archive import columns as a
from spark.archive.living import Living
from spark.archive.reclaim import living_of
from spark.hot_store import Hot
from spark.session import PAGE_SUMS


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


def examine(spark: SparkSession, hot: Hot, rows: DataFrame, living: Living, group_key: int | None = None) -> Check:
    """Compare ``rows`` of the table with the index, for one group or for all, as far as they can be read.

    What the index does not name is left out: it was erased, is in the hot store again, or is on its way.
    """
    parts = hot.read(moves.parts, group_key)
    index = {part.key: part for part in parts}
    rows = living_of(spark, rows, parts, living)
    with _without_page_sums(spark):
        found, doubles = _read(rows), _find_doubles(rows)
    stored = {key: each.row for key, each in found.items()}
    faults = compare(index, stored, {key: each.altered for key, each in found.items()})
    called = hot.read(group_names, {key[0] for key in faults} | doubles.keys())
    differences = [
        f"{called[key[0]]}, {partition_name(key)}: {line}" for key, lines in faults.items() for line in lines
    ]
    differences += [
        f"{called[key]}: {count:,} numbers are there more than once" for key, count in sorted(doubles.items())
    ]
    return Check(
        sum(row.message_count for row in stored.values()),
        sum(row.body_bytes for row in stored.values()),
        len(index),
        differences,
    )


@contextmanager
def _without_page_sums(spark: SparkSession) -> Iterator[None]:
    """Have damaged pages read in the block, so that messages are told by their own checksums. Write nothing then."""
    spark.conf.set(PAGE_SUMS, "false")
    try:
        yield
    finally:
        spark.conf.unset(PAGE_SUMS)


def _checksum() -> Column:
    """Return the checksum of a message, computed from its columns CHECKED."""
    return F.xxhash64(*a.CHECKED)


def _read(rows: DataFrame) -> dict[Key, Found]:
    number, created = F.col(a.SEQUENCE_NUM), F.col(a.CREATED_AT)
    found = rows.groupBy(a.GROUP_KEY, a.LIFETIME, a.SPAN).agg(
        F.min(number),
        F.max(number),
        F.min(created),
        F.max(created),
        F.count(F.lit(1)),
        F.coalesce(F.sum(a.SIZE), F.lit(0)),
        F.bit_xor(_checksum()),
        F.count(F.when(~F.col(a.CHECKSUM).eqNullSafe(_checksum()), 1)),
    )
    return {(row[0], row[1], row[2]): Found(PartRow(*tuple(row)[:10]), row[10]) for row in found.collect()}


def _find_doubles(rows: DataFrame) -> dict[int, int]:
    """Return for each group how many of its numbers occur more than once; only groups with any."""
    numbers = rows.groupBy(a.GROUP_KEY, a.SEQUENCE_NUM).count().where("count > 1")
    return {row[0]: row[1] for row in numbers.groupBy(a.GROUP_KEY).count().collect()}
