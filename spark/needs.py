"""Decides from the database alone whether a run needs Spark, and the archive."""

import sqlite3
from collections.abc import Collection

from conclave.config.archive import ArchiveConfig
from conclave.retention import due
from conclave.retention.jobs import Scope
from conclave.retention.plan import Plan, make_plan
from conclave.retention.policy import KEEP
from conclave.store.archive import move_selection, moves, reclaiming
from spark.archive import expiry_plan
from spark.hot_store import Hot


def plan_without(connection: sqlite3.Connection, hot: Hot, scope: Scope) -> Plan | None:
    """Return the plan of a run that deletes nothing from the hot store; None if messages are due there.

    The plan may have deleted groups and accounts whose messages are withheld, or in the archive. A run without a plan
    needs Spark from the start. Erasing from the archive does not; reclaiming space does: then Spark is started later.
    """
    plan = make_plan(connection, hot.settings, hot.now, scope)
    return None if due.is_any(connection, plan) else plan


def of_archive(
    connection: sqlite3.Connection,
    hot: Hot,
    archive: ArchiveConfig,
    scope: Scope,
    risen: Collection[tuple[int, int]] = (),
) -> bool:
    """Return whether a run has to open the archive, after the rules were applied to the hot store.

    Always true if messages may be due while a user is under a legal hold: only the table shows their senders.
    ``risen``: the marks that the run will raise, see ``expiry_plan.make_plan``.
    """
    state = moves.find_state(connection)
    return (
        (state is not None and (state.unerased or moves.batch_under_way(connection) is not None))
        or bool(moves.hot_copies(connection))
        or reclaiming.is_unsettled(connection)
        or (
            scope.is_housekeeping
            and archive.after != KEEP
            and move_selection.has_work(connection, archive.least_lifetime, hot.now - archive.after)
        )
        or (scope.is_housekeeping and reclaiming.is_due(connection, hot.now, archive.reclaim_interval))
        or bool(expiry_plan.make_plan(connection, hot, scope, risen))
    )
