"""Counts what legal holds keep in the archive: exactly, without Spark, and without reading a body."""

import sqlite3
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from conclave.retention.holds import HELD_GROUPS
from conclave.retention.jobs import ALL
from conclave.store.archive import erasures
from conclave.store.resources.receipts import OVERWRITTEN, Erased
from spark.archive import due_rows, expiry_plan, table_files
from spark.archive.data_files import Partition
from spark.archive.expiry_plan import RESTORED, ArchivePlan
from spark.archive.table_files import StoredFile
from spark.hot_store import Hot


def count(hot: Hot, path: Path, risen: Collection[tuple[int, int]] = ()) -> int:
    """Return how many messages would have been erased from the archive by now, if no legal hold covered them.

    What is due as a whole is counted by the index, the rest row by row. ``path``: of the table. ``risen``: see
    ``due.held_back``. Raises ArchiveError.
    """
    held_groups, plan = hot.read(_plan, hot, risen)
    if not (held_groups or plan.held):
        return 0
    dropped = {key: each for key, each in plan.dropped.items() if key[0] in held_groups}
    found = sum(_counted(erasures.divided(each, plan.told.get(key))) for key, each in dropped.items())
    if not plan.held:  # then only groups are held
        plan.groups = {key: each for key, each in plan.groups.items() if key in held_groups}
        plan.partial = [key for key in plan.partial if key[0] in held_groups]
    for partition, files in _files(path, plan).items():
        rows = due_rows.find(path, plan, partition, files, held_groups)
        found += sum(_counted(gone) for gone in rows.by_rules().values())
    return found


def _plan(connection: sqlite3.Connection, hot: Hot, risen: Collection[tuple[int, int]]) -> tuple[set[int], ArchivePlan]:
    held_groups = {row[0] for row in connection.execute(HELD_GROUPS)}
    return held_groups, expiry_plan.make_plan(connection, hot, ALL, risen, despite_holds=True)


def _files(path: Path, plan: ArchivePlan) -> dict[Partition, list[StoredFile]]:
    found: dict[Partition, list[StoredFile]] = defaultdict(list)
    if plan.partial:
        for file in table_files.of_groups(path, plan.touched, plan.groups):
            found[file.partition].append(file)
    return found


def _counted(gone: Collection[Erased]) -> int:
    """Return how many messages these are, without those that can be read in no tier, or in the other one."""
    return sum(each.messages for each in gone if each.rule not in (OVERWRITTEN, RESTORED))
