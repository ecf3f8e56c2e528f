"""Reclaims space from partitions with many erased messages, or with many small files.

Spark rewrites such a partition. Only messages that are in the index and have a key are copied. The rest cannot be
decrypted. A partition without readable messages is dropped, which changes only the table's log.
"""

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow
from pyspark.sql import DataFrame, SparkSession, functions as F

from conclave.archive.faults import ADVICE
from conclave.archive.layout import in_partitions
from conclave.failpoints import reach
from conclave.store.archive import moves, reclaiming
from conclave.store.archive.moves import PartRow
from spark.archive import columns as a
from spark.archive.data_files import Partition
from spark.archive.living import Living
from spark.archive.table import Table
from spark.hot_store import ArchiveRunError, Hot

_RANGES = pyarrow.schema(
    [(name, pyarrow.int64()) for name in ("range_group", "range_lifetime", "range_span", "range_first", "range_last")]
)


@dataclass(frozen=True)
class Reclaimable:
    """The partitions to drop, and the partitions to rewrite."""

    dropped: list[Partition]
    rewritten: list[Partition]

    def __bool__(self) -> bool:
        return bool(self.dropped or self.rewritten)


def find(hot: Hot, table: Table, before: int) -> Reclaimable:
    """Return the partitions to drop or rewrite. ``before``: include those with messages erased by this Unix second."""
    shares = hot.read(reclaiming.shares)
    reclaimable = {partition for partition, share in shares.items() if share.is_reclaimable(before)}
    unreadable = {partition for partition in reclaimable if not shares[partition].living}
    return Reclaimable(sorted(unreadable), sorted((reclaimable | table.crowded_partitions()) - unreadable))


def drop(hot: Hot, table: Table, partitions: Collection[Partition]) -> None:
    """Drop partitions without readable messages."""
    if partitions:
        table.drop_partitions(partitions)
        reach("archive.parts_dropped")
        _record(hot, table, partitions)


def rewrite(spark: SparkSession, hot: Hot, table: Table, partition: Partition, living: Living) -> None:
    """Rewrite the readable messages of a partition to few files. Raises ArchiveRunError if any is missing."""
    parts = hot.read(moves.parts_of_partition, *partition)
    rows = readable_rows(spark, table.read().where(in_partitions([partition])), parts, living)
    _require_complete(table, parts, rows)
    table.rewrite(partition, rows)
    reach("archive.rewritten")
    _record(hot, table, [partition])


def readable_rows(spark: SparkSession, rows: DataFrame, parts: Collection[PartRow], living: Living) -> DataFrame:
    """Return those of ``rows`` that are readable messages of ``parts``."""
    ranges = [(*part.key, *numbers) for part in parts for numbers in living.of(part)]
    columns = list(zip(*ranges, strict=True)) or [()] * len(_RANGES)
    # Built from Arrow: a list of rows would go through a Python worker process.
    arrays = [pyarrow.array(column, pyarrow.int64()) for column in columns]
    readable = F.broadcast(spark.createDataFrame(pyarrow.table(arrays, schema=_RANGES)))
    is_readable = (
        (rows[a.GROUP_KEY] == readable["range_group"])
        & (rows[a.LIFETIME] == readable["range_lifetime"])
        & (rows[a.SPAN] == readable["range_span"])
        & rows[a.SEQUENCE_NUM].between(readable["range_first"], readable["range_last"])
    )
    return rows.join(readable, is_readable, "left_semi")


def _require_complete(table: Table, parts: Collection[PartRow], rows: DataFrame) -> None:
    """Raise ArchiveRunError unless ``rows`` match the index. Otherwise a rewrite would lose messages."""
    totals = rows.groupBy(a.GROUP_KEY).agg(F.count(F.lit(1)), F.bit_xor(F.col(a.CHECKSUM))).collect()
    actual = {row[0]: (row[1], row[2]) for row in totals}
    expected = {part.group_key: (part.message_count, part.checksum) for part in parts}
    if actual != expected:
        read_count, index_count = (sum(count for count, _ in each.values()) for each in (actual, expected))
        raise ArchiveRunError(
            f"{table.path}: {read_count:,} messages are read where the index has {index_count:,}{ADVICE}"
        )


def _record(hot: Hot, table: Table, partitions: Collection[Partition]) -> None:
    """Record in the hot store that the space of partitions was reclaimed, once the table is durable."""
    version = table.version()
    table.make_durable(version)
    for partition in partitions:
        hot.write(reclaiming.note_reclaimed, partition, version)
    reach("archive.space_noted")
