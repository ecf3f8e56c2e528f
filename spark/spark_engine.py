"""Makes a plan with Spark: reads the store as DataFrames, plans, and collects the result."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from conclave.failpoints import reach
from conclave.retention.jobs import Scope
from conclave.retention.plan import GroupStep, Plan
from conclave.retention.policy import expiry_cutoff
from conclave.retention.resolve import PolicySettings
from spark import plan, read, read as c


def make_plan(spark: SparkSession, path: Path, settings: PolicySettings, now: int, scope: Scope) -> Plan:
    """Plan a run at the Unix second ``now``, from one snapshot of the hot store."""
    hot = read.read_hot(spark, path, now)
    reach("plan.read")
    sessions = hot.sessions if scope.is_housekeeping else None
    invites = hot.invites if scope.is_housekeeping else None
    too_old_before = expiry_cutoff(now, settings.self_destruct_max_age)
    timed = plan.redacted_for_all(*hot.timed, too_old_before) if hot.timed else None
    redacted = timed.union(hot.taken_back) if timed and hot.taken_back else timed or hot.taken_back
    groups = plan.with_policies(hot.groups, now, scope)
    planned = plan.group_plan(groups, hot.members, redacted).orderBy(c.GROUP_KEY)
    return Plan(
        now,
        [GroupStep(*row) for row in planned.collect()],
        hot.tombstones,
        hot.user_tombstones,
        _keys(plan.dead_sessions(sessions, settings.sessions_dead_before(now))) if sessions else [],
        _keys(plan.old_invites(invites, settings.invites_dead_before(now))) if invites else [],
    )


def _keys(frame: DataFrame) -> list[int]:
    return sorted(row[0] for row in frame.collect())
