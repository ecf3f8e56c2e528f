"""Has Spark look at rows of the archive and delete some: on all its cores, or on a cluster."""

from collections import defaultdict
from collections.abc import Collection

import pyarrow
from pyspark.sql import DataFrame, SparkSession, Window, functions as F

from conclave.archive.layout import in_partitions
from conclave.keys.cover import Range
from conclave.retention.rules import Bounds
from conclave.store.archive.erasures import Key
from conclave.store.archive.moves import PartRow
from conclave.store.resources.receipts import Erased
from spark.archive import columns as a
from spark.archive.data_files import Partition
from spark.archive.eraser import MEASURED, Living, Measured, rule_of_row
from spark.archive.expiry_plan import ArchivePlan
from spark.archive.table import Table

_OF_ROW = Bounds(
    gone=a.GONE_BELOW,
    unheld=f"NOT array_contains({a.HELD}, {a.SENDER_ID})",
    by_deleted=f"array_contains({a.SENDERS}, {a.SENDER_ID})",
    is_deleted=a.IS_GONE,
    is_taken_back=f"array_contains({a.TAKEN_BACK}, {a.SEQUENCE_NUM})",
)


class SparkEraser:
    """An Eraser."""

    def __init__(self, spark: SparkSession, table: Table) -> None:
        """Take what is needed; nothing is read yet."""
        self._spark = spark
        self._table = table

    def measure(self, plan: ArchivePlan) -> dict[Key, Measured]:
        """See Eraser."""
        if not plan.partial:
            return {}
        self._table.require_all_read(plan.touched)
        number, created, rule = F.col(a.SEQUENCE_NUM), F.col(a.CREATED_AT), F.expr(rule_of_row(_OF_ROW))
        stays = rule.isNull()
        found = (
            self._table.read()
            .where(in_partitions(plan.touched))
            .where(F.col(a.GROUP_KEY).between(min(plan.groups), max(plan.groups)))
            .alias("messages")
            .join(self._due(plan), a.GROUP_KEY)
            .groupBy(a.GROUP_KEY, a.LIFETIME, a.SPAN)
            .agg(
                F.min(F.when(stays, number)),
                F.max(F.when(stays, number)),
                F.min(F.when(stays, created)),
                F.max(F.when(stays, created)),
                F.count(F.when(stays, number)),
                F.sum(F.when(stays, F.octet_length(a.BODY))),
                F.bit_xor(F.when(stays, F.col(a.CHECKSUM))),
                F.collect_list(F.when(stays & F.expr(_OF_ROW.is_taken_back), number)),
                *[
                    aggregated
                    for each in MEASURED
                    for aggregated in (
                        F.count(F.when(rule == each, number)),
                        F.max(F.when(rule == each, number)),
                        F.max(F.when(rule == each, created)),
                    )
                ],
            )
        )
        planned = set(plan.partial)
        measured = {}
        for row in found.collect():
            key, left, taken, gone = (row[0], row[1], row[2]), tuple(row)[:10], row[10], tuple(row)[11:]
            if key in planned:
                part = PartRow(*left) if row[7] else None
                of_rules = zip(MEASURED, gone[::3], gone[1::3], gone[2::3], strict=True)
                measured[key] = Measured([Erased(*each) for each in of_rules if each[1]], part, taken)
        return measured

    def delete(self, plan: ArchivePlan) -> int:
        """See Eraser."""
        self._table.require_all_read(plan.touched)  # what was measured before may have been another state
        self._due(plan).createOrReplaceTempView("archive_due")
        try:
            merged = self._spark.sql(
                f"MERGE INTO {self._table.name} AS messages USING archive_due AS due"
                f" ON {in_partitions(plan.touched, 'messages.')} AND messages.{a.GROUP_KEY} = due.{a.GROUP_KEY}"
                f" AND messages.{a.GROUP_KEY} BETWEEN {min(plan.groups)} AND {max(plan.groups)}"
                f" AND {rule_of_row(_OF_ROW)} IS NOT NULL WHEN MATCHED THEN DELETE"
            )
            return int(merged.collect()[0]["num_deleted_rows"])
        finally:
            self._spark.catalog.dropTempView("archive_due")

    def _due(self, plan: ArchivePlan) -> DataFrame:
        rows = [(group_key, *conditions, plan.held) for group_key, conditions in sorted(plan.groups.items())]
        columns = dict(zip(a.DUE.names, zip(*rows, strict=True), strict=True))
        return F.broadcast(self._spark.createDataFrame(pyarrow.table(columns, schema=a.DUE)))

    def living(self, group_keys: Collection[int], partitions: Collection[Partition]) -> Living:
        """See Eraser."""
        self._table.require_all_read(partitions)
        wanted = self._spark.createDataFrame(pyarrow.table({a.GROUP_KEY: sorted(group_keys)}))
        rows = (
            self._table.read()
            .where(in_partitions(partitions))
            .where(F.col(a.GROUP_KEY).between(min(group_keys), max(group_keys)))
            .join(F.broadcast(wanted), a.GROUP_KEY)
        )
        number = F.col(a.SEQUENCE_NUM)
        order = Window.partitionBy(a.GROUP_KEY).orderBy(number)
        found = (  # a number that is there twice counts once: else what lacks between others would look as if it lived
            rows.select(a.GROUP_KEY, number, (number - F.dense_rank().over(order)).alias("run"))
            .groupBy(a.GROUP_KEY, "run")
            .agg(F.min(number), F.max(number))
        )
        of_groups: dict[int, list[Range]] = defaultdict(list)
        for group_key, _, first, last in found.collect():
            of_groups[group_key].append(Range(first, last))
        return of_groups
