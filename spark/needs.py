"""Whether a run needs Spark, and the archive: the database alone says so, without Java and without the archive's table.

What is due is asked of the one room for retention, and of the archive's index.
"""

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
    """Return the plan of a run that lets nothing go from the hot store; None if anything is due there.

    It may name deleted groups and accounts of which all that is left is withheld, or lies in the archive.
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
    """Return whether a run has to open the archive, after the rules were applied in the hot store.

    While a legal hold covers a user, only the table can tell whether anything else is due: then the answer is yes.
    ``risen``: the marks that the run has yet to raise, see ``expiry_plan.make_plan``.
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


def of_run(connection: sqlite3.Connection, hot: Hot, scope: Scope) -> bool:
    """Return whether a run at the second of ``hot`` would need Spark from the start.

    What is due in the archive is erased without it. Space is given back with it: the run sees in the table whether that
    is worth it, and starts Spark itself then.
    """
    return plan_without(connection, hot, scope) is None
