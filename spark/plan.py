"""Plans a run with Spark: the deletions, and the marks to raise.

The rules are those of the retention contract, sections 1 and 5, as in ``conclave/retention/rules.py`` in SQL. The model
in the tests checks both.
"""

from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from conclave.failpoints import reach
from conclave.retention.jobs import PurgeJob, Scope
from conclave.retention.plan import GroupStep, Plan
from conclave.retention.policy import FOREVER, KEEP, expiry_cutoff
from conclave.retention.resolve import PolicySettings
from spark import read as c


def make_plan(spark: SparkSession, path: Path, settings: PolicySettings, now: int, scope: Scope) -> Plan:
    """Plan a run at the Unix second ``now``, from one snapshot of the hot store."""
    hot = c.read_hot(spark, path, now)
    reach("plan.read")
    sessions = hot.sessions if scope.is_housekeeping else None
    invites = hot.invites if scope.is_housekeeping else None
    too_old_before = expiry_cutoff(now, settings.self_destruct_max_age)
    timed = redacted_for_all(*hot.timed, too_old_before) if hot.timed else None
    redacted = timed.union(hot.taken_back) if timed and hot.taken_back else timed or hot.taken_back
    groups = with_policies(hot.groups, now, scope)
    planned = group_plan(groups, hot.members, redacted).orderBy(c.GROUP_KEY)
    return Plan(
        now,
        [GroupStep(*row) for row in planned.collect()],
        hot.tombstones,
        hot.user_tombstones,
        _keys(dead_sessions(sessions, settings.sessions_dead_before(now))) if sessions else [],
        _keys(old_invites(invites, settings.invites_dead_before(now))) if invites else [],
    )


def _keys(frame: DataFrame) -> list[int]:
    return sorted(row[0] for row in frame.collect())


def group_plan(groups: DataFrame, members: DataFrame, redacted: DataFrame | None = None) -> DataFrame:
    """Return a row with the values of GroupStep for each group in which a message is due or a mark rises.

    Groups that the run does not cover by their lifetime have a row only if messages are past a mark, or redacted for
    every reader. ``redacted``: a table REDACTED with the redacted messages, or None.
    """
    marked = (
        _with_redacted(groups, redacted)
        .join(least_watermarks(members), c.GROUP_KEY)
        .withColumn("new_floor", _floor())
        .withColumn("new_gone", _gone_below())
        .withColumn("cutoff", F.greatest(c.EXPIRED_BEFORE, c.EXPIRES_BEFORE))
    )
    is_past_mark = _has_marked() | _has_older(c.EXPIRED_BEFORE)
    rises = (F.col("new_floor") > F.col(c.FLOOR)) | (F.col("new_gone") > F.col(c.GONE_BELOW))
    redacts = F.col(c.REDACTS) == 1
    due = _has_fetched() | _has_older("cutoff") | rises | redacts
    return marked.where(((F.col(c.COVERED) == 1) | is_past_mark | redacts) & due).select(
        c.GROUP_KEY,
        F.col("new_floor").alias(c.FLOOR),
        F.col("new_gone").alias(c.GONE_BELOW),
        F.col("cutoff").alias(c.EXPIRED_BEFORE),
        c.ERASABLE_BEFORE,
        c.COMMITS_ABOVE,
        c.REDACTS,
    )


def with_policies(groups: DataFrame, now: int, scope: Scope) -> DataFrame:
    """Add to the table GROUPS the bounds of the policies at the Unix second ``now``, and whether the run covers it."""
    age = F.when(_after_fetch(), F.col(c.HOLD_LIMIT)).otherwise(F.col(c.LIFETIME))
    least = F.col(c.LEAST_LIFETIME)
    return (
        groups.withColumn(c.EXPIRES_BEFORE, F.when(age > 0, F.greatest(F.lit(0), F.lit(now) - age)).otherwise(0))
        .withColumn(
            c.ERASABLE_BEFORE,
            F.when((F.col(c.ERASES) == 0) | (F.col(c.HELD) == 1), 0)
            .when(least > 0, F.greatest(F.lit(0), F.lit(now + 1) - least))
            .otherwise(FOREVER),
        )
        .withColumn(c.COVERED, _covered(scope.job) if scope.job else F.lit(0))
    )


def _covered(job: PurgeJob) -> Column:
    """Return 1 if a group belongs to a job by its lifetime, otherwise 0."""
    lifetime, longest = F.col(c.LIFETIME), job.longest_max_lifetime
    is_within = (lifetime > job.shortest_max_lifetime) & (F.lit(longest == KEEP) | (lifetime <= longest))
    return (
        F.when(_after_fetch(), int(job.shortest_max_lifetime == KEEP))
        .when(lifetime == KEEP, int(longest == KEEP))
        .otherwise(F.when(is_within, 1).otherwise(0))
    )


def redacted_for_all(timed: DataFrame, readers: DataFrame, pending: DataFrame, too_old_before: int) -> DataFrame:
    """Return the self-destructing messages that are redacted for every reader.

    These have no running timer, and were read by all readers except the sender, or created before ``too_old_before``
    (Unix seconds, exclusive), so that no timer can start. ``timed``, ``readers`` and ``pending``: the tables
    SELF_DESTRUCTING, READERS and TIMERS.
    """
    # The sender does not count, so the two readers who have read least are sufficient.
    two_least = F.slice(F.array_sort(F.collect_list(F.struct(c.READ_UP_TO, c.USER_ID))), 1, 2)
    behind = readers.groupBy(c.GROUP_KEY).agg(two_least.alias("behind"))
    first, second = F.get(F.col("behind"), F.lit(0)), F.get(F.col("behind"), F.lit(1))
    least = F.when(first[c.USER_ID] != F.col(c.SENDER_ID), first[c.READ_UP_TO]).otherwise(second[c.READ_UP_TO])
    running = (
        pending.join(readers.select(c.MEMBER_ID), c.MEMBER_ID)
        .select(c.GROUP_KEY, c.SEQUENCE_NUM)
        .distinct()
        .withColumn("runs", F.lit(1))
    )
    is_read = least.isNull() | (least >= F.col(c.SEQUENCE_NUM))
    is_over = (F.col(c.ENDED) == 1) | (F.col(c.CREATED_AT) < too_old_before)
    return (
        timed.join(behind, c.GROUP_KEY)
        .join(running, [c.GROUP_KEY, c.SEQUENCE_NUM], "left")
        .where((is_over | is_read) & F.col("runs").isNull())
        .select(c.GROUP_KEY, c.CREATED_AT)
    )


def _with_redacted(groups: DataFrame, redacted: DataFrame | None) -> DataFrame:
    """Add the column REDACTS to the groups."""
    if redacted is None:
        return groups.withColumn(c.REDACTS, F.lit(0))
    oldest = redacted.groupBy(c.GROUP_KEY).agg(F.min(c.CREATED_AT).alias("oldest_redacted"))
    is_erasable = F.col("oldest_redacted") < F.col(c.ERASABLE_BEFORE)
    return groups.join(oldest, c.GROUP_KEY, "left").withColumn(c.REDACTS, F.when(is_erasable, 1).otherwise(0))


def least_watermarks(members: DataFrame) -> DataFrame:
    """Return for each group the least watermark of its members."""
    return members.groupBy(c.GROUP_KEY).agg(F.min(c.WATERMARK).alias(c.LEAST_WATERMARK))


def dead_sessions(sessions: DataFrame, dead_before: int) -> DataFrame:
    """Return the ids of the sessions that expired before ``dead_before`` (Unix seconds, exclusive)."""
    return sessions.where(F.col(c.EXPIRES_AT) < dead_before).select(c.SESSION_ID)


def old_invites(invites: DataFrame, dead_before: int) -> DataFrame:
    """Return the keys of the invites made before ``dead_before`` (Unix seconds, exclusive)."""
    return invites.where(F.col(c.CREATED_AT) < dead_before).select(c.INVITE_KEY)


def _has_marked() -> Column:
    """Return whether the stored mark covers a message that may be erased."""
    return F.col(c.OLDEST_MARKED) < F.col(c.ERASABLE_BEFORE)


def _has_fetched() -> Column:
    """Return whether the mark after the run covers a message that may be erased."""
    fetched = F.when(F.col(c.ERASABLE_BEFORE) == FOREVER, F.col(c.OLDEST_SEQ) <= F.col("new_gone")).otherwise(
        _after_fetch() & (F.col(c.OLDEST_FETCHED) < F.col(c.ERASABLE_BEFORE))
    )
    return fetched | _has_marked()


def _has_older(cutoff: str) -> Column:
    """Return whether a message that may be erased was created before the second in the column ``cutoff``."""
    return F.col(c.OLDEST_CREATED) < F.least(cutoff, c.ERASABLE_BEFORE)


def _after_fetch() -> Column:
    return F.col(c.LIFETIME) == 0


def _floor() -> Column:
    """Return the floor after the run. It rises only for groups in delete-after-fetch."""
    risen = F.greatest(c.FLOOR, c.LEAST_WATERMARK)
    return F.when(_after_fetch(), risen).otherwise(F.col(c.FLOOR))


def _gone_below() -> Column:
    risen = F.greatest(F.col(c.GONE_BELOW), F.col("new_floor"))
    return F.when(_after_fetch(), risen).otherwise(F.col(c.GONE_BELOW))
