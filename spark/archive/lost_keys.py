"""Which keys are to be lost with what an expiry has erased from the archive: all numbers of a part but what is left.

By what is left, not by what goes: so a run that ends in the middle needs no notes of its own. What has gone from the
table is missing there, and the index, which changes last, says where to look.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import pyarrow
from pyspark.sql import DataFrame, SparkSession, Window, functions as F

from conclave.archive.layout import in_partitions
from conclave.keys import ranges
from conclave.keys.cover import Range
from conclave.store.archive import moves
from conclave.store.archive.erasures import Key
from conclave.store.archive.moves import PartRow
from conclave.store.resources import message_keys
from spark.archive import columns as a
from spark.archive.table import Table
from spark.hot_store import Hot

Living = Mapping[int, Sequence[Range]]
"""The numbers that the table has, by the keys of groups."""


def living(spark: SparkSession, hot: Hot, table: Table, settled: Collection[Key], dropped: Collection[Key]) -> Living:
    """Return what the table still has between the first and the last numbers of ``settled``: rows of the index.

    ``dropped``: those whose partitions are gone as a whole. Nothing is read if the messages are under no keys.
    """
    if hot.read(message_keys.state) is None:
        return {}
    gone, concerned = set(dropped), set(settled)
    by_group = hot.read(_parts_of, {key[0] for key in concerned})
    read: list[PartRow] = []
    for parts in by_group.values():
        bounds = [part for part in parts if _key(part) in concerned]
        read += [part for part in parts if _key(part) not in gone and any(_meet(part, each) for each in bounds)]
    if not read:
        return {}
    keys = sorted({part.group_key for part in read})
    partitions = sorted({(part.lifetime, part.span) for part in read})
    rows = table.read().where(in_partitions(partitions)).where(F.col(a.GROUP_KEY).between(keys[0], keys[-1]))
    wanted = spark.createDataFrame(pyarrow.table({a.GROUP_KEY: keys}))
    return _ranges(rows.join(F.broadcast(wanted), a.GROUP_KEY))


def note(connection: sqlite3.Connection, group_key: int, settled: Collection[Key], left: Living) -> None:
    """Note the keys that are lost with rows of the index, which are about to be settled in this transaction.

    What the database has again, after a group was restored, keeps its keys.
    """
    if message_keys.state(connection) is None:
        return
    concerned = set(settled)
    for part in moves.parts(connection, group_key):
        if _key(part) in concerned:
            rows = connection.execute(
                "SELECT sequence_num FROM messages WHERE group_key = ? AND sequence_num BETWEEN ? AND ?"
                " ORDER BY sequence_num",
                (group_key, part.first_seq, part.last_seq),
            )
            stays = ranges.joined([*left.get(group_key, ()), *ranges.of(row[0] for row in rows)])
            dead = ranges.without([Range(part.first_seq, part.last_seq)], stays)
            message_keys.note_ranges(connection, group_key, dead)


def _parts_of(connection: sqlite3.Connection, group_keys: Collection[int]) -> dict[int, list[PartRow]]:
    return {key: moves.parts(connection, key) for key in group_keys}


def _key(part: PartRow) -> Key:
    return part.group_key, part.lifetime, part.span


def _meet(one: PartRow, other: PartRow) -> bool:
    return one.first_seq <= other.last_seq and other.first_seq <= one.last_seq


def _ranges(rows: DataFrame) -> Living:
    """Return the numbers of messages as ranges of neighbours."""
    number = F.col(a.SEQUENCE_NUM)
    order = Window.partitionBy(a.GROUP_KEY).orderBy(number)
    found = (
        rows.select(a.GROUP_KEY, number, (number - F.row_number().over(order)).alias("run"))
        .groupBy(a.GROUP_KEY, "run")
        .agg(F.min(number), F.max(number))
    )
    of_groups: dict[int, list[Range]] = defaultdict(list)
    for group_key, _, first, last in found.collect():
        of_groups[group_key].append(Range(first, last))
    return of_groups
