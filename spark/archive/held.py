"""Counts the archived messages that only legal holds keep, without Spark and without reading bodies."""

import sqlite3
from collections.abc import Callable, Collection
from pathlib import Path

from conclave.keys.store import KeyStore
from conclave.retention.holds import HELD_GROUPS
from conclave.retention.jobs import ALL
from spark.archive import due_rows, expiry_plan
from spark.archive.expiry_plan import ArchivePlan
from spark.archive.living import Living
from spark.hot_store import Hot


def count(hot: Hot, path: Path, keys: Callable[[], KeyStore], risen: Collection[tuple[int, int]] = ()) -> int:
    """Return how many archived messages would be erased without legal holds.

    Parts that are due as a whole are counted by the index, other parts by their rows. ``path``: the table's folder.
    ``risen``: see ``due.count_held``. Raises ArchiveRunError.
    """
    held_groups, plan = hot.read(_plan, hot, risen)
    if not (held_groups or plan.held):
        return 0
    if not plan.held:  # only groups are held
        plan.parts = [part for part in plan.parts if part.group_key in held_groups]
    return due_rows.count_held(hot, path, plan, Living(hot, keys), held_groups)


def _plan(connection: sqlite3.Connection, hot: Hot, risen: Collection[tuple[int, int]]) -> tuple[set[int], ArchivePlan]:
    held_groups = {row[0] for row in connection.execute(HELD_GROUPS)}
    return held_groups, expiry_plan.make_plan(connection, hot, ALL, risen, despite_holds=True)
