"""Reclaims space: rewrites partitions with many erased messages or many small files, by Spark.

Writes only messages in the index that have keys; the others are ciphertext without keys. Partitions without such
messages are dropped, by a change of the table's log.
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
    """The partitions to drop, and those to rewrite."""

    dropped: list[Partition]
    rewritten: list[Partition]

    def __bool__(self) -> bool:
        return bool(self.dropped or self.rewritten)


def find(hot: Hot, table: Table, before: int) -> Reclaimable:
    """Find partitions to reclaim. ``before``: messages erased before this Unix second are always reclaimed."""
    shares = hot.read(reclaiming.shares)
    worth = {partition for partition, share in shares.items() if share.is_reclaimable(before)}
    dropped = {partition for partition in worth if not shares[partition].living}
    return Reclaimable(sorted(dropped), sorted((worth | table.crowded_partitions()) - dropped))


def drop(hot: Hot, table: Table, partitions: Collection[Partition]) -> None:
    """Drop partitions without readable messages."""
    if partitions:
        table.drop_partitions(partitions)
        reach("archive.parts_dropped")
        _note(hot, table, partitions)


def rewrite(spark: SparkSession, hot: Hot, table: Table, partition: Partition, living: Living) -> None:
    """Rewrite the readable messages of a partition to few files. Raises ArchiveRunError if any is missing."""
    parts = hot.read(moves.parts_of_partition, *partition)
    rows = living_of(spark, table.read().where(in_partitions([partition])), parts, living)
    _require(table, parts, rows)
    table.rewrite(partition, rows)
    reach("archive.rewritten")
    _note(hot, table, [partition])


def living_of(spark: SparkSession, rows: DataFrame, parts: Collection[PartRow], living: Living) -> DataFrame:
    """Return the readable rows of ``parts``."""
    ranges = [(*part.key, *some) for part in parts for some in living.of(part)]
    columns = list(zip(*ranges, strict=True)) or [()] * len(_RANGES)
    # Use Arrow: Python rows would pass through a Python process that Spark starts.
    arrays = [pyarrow.array(each, pyarrow.int64()) for each in columns]
    known = F.broadcast(spark.createDataFrame(pyarrow.table(arrays, schema=_RANGES)))
    lives = (
        (rows[a.GROUP_KEY] == known["range_group"])
        & (rows[a.LIFETIME] == known["range_lifetime"])
        & (rows[a.SPAN] == known["range_span"])
        & rows[a.SEQUENCE_NUM].between(known["range_first"], known["range_last"])
    )
    return rows.join(known, lives, "left_semi")


def _require(table: Table, parts: Collection[PartRow], rows: DataFrame) -> None:
    """Raise ArchiveRunError unless ``rows`` match the index: a rewrite would lose unread messages."""
    found = rows.groupBy(a.GROUP_KEY).agg(F.count(F.lit(1)), F.bit_xor(F.col(a.CHECKSUM))).collect()
    read = {row[0]: (row[1], row[2]) for row in found}
    indexed = {part.group_key: (part.message_count, part.checksum) for part in parts}
    if read != indexed:
        counted, wanted = (sum(count for count, _ in each.values()) for each in (read, indexed))
        raise ArchiveRunError(f"{table.path}: {counted:,} messages are read where the index has {wanted:,}{ADVICE}")


def _note(hot: Hot, table: Table, partitions: Collection[Partition]) -> None:
    version = table.version()
    table.make_durable(version)
    for partition in partitions:
        hot.write(reclaiming.note_reclaimed, partition, version)
    reach("archive.space_noted")
