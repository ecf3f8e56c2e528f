"""What a run deletes and which marks it moves: pure functions from DataFrames to DataFrames.

The second of the run comes in as data: in the policies of the groups, and in the bounds on what is dead. The rules are
those of the retention contract, sections 1 and 5; their second telling, in SQL, is ``sql_engine``.
"""

from pyspark.sql import Column, DataFrame, functions as F

from spark import columns as c


def group_plan(groups: DataFrame, members: DataFrame) -> DataFrame:
    """Return a GROUP_PLAN row for each group in which a message is due or a mark has to rise.

    Everything at or below ``gone_below`` goes, and everything created before ``expired_before``.
    """
    marked = (
        groups.join(least_watermarks(members), c.GROUP_KEY)
        .withColumn("new_floor", _floor())
        .withColumn("new_gone", _gone_below())
        .withColumn("cutoff", F.greatest(c.EXPIRED_BEFORE, c.EXPIRES_BEFORE))
    )
    due = (
        (F.col(c.OLDEST_SEQ) <= F.col("new_gone"))
        | (F.col(c.OLDEST_CREATED) < F.col("cutoff"))
        | (F.col("new_floor") > F.col(c.FLOOR))
        | (F.col("new_gone") > F.col(c.GONE_BELOW))
    )
    return marked.where(due).select(
        c.GROUP_KEY,
        F.col("new_floor").alias(c.FLOOR),
        F.col("new_gone").alias(c.GONE_BELOW),
        F.col("cutoff").alias(c.EXPIRED_BEFORE),
    )


def least_watermarks(members: DataFrame) -> DataFrame:
    """Return for each group the least watermark of its members."""
    return members.groupBy(c.GROUP_KEY).agg(F.min(c.WATERMARK).alias(c.LEAST_WATERMARK))


def dead_sessions(sessions: DataFrame, dead_before: int) -> DataFrame:
    """Return the ids of the sessions that expired before ``dead_before`` (exclusive)."""
    return sessions.where(F.col(c.EXPIRES_AT) < dead_before).select(c.SESSION_ID)


def old_invites(invites: DataFrame, dead_before: int) -> DataFrame:
    """Return the keys of the invites made before ``dead_before`` (exclusive)."""
    return invites.where(F.col(c.CREATED_AT) < dead_before).select(c.INVITE_KEY)


def _after_fetch() -> Column:
    return F.col(c.LIFETIME) == 0


def _floor() -> Column:
    """The floor after the run; only groups in delete-after-fetch have a use for it."""
    risen = F.greatest(c.FLOOR, c.LEAST_WATERMARK)
    return F.when(_after_fetch(), risen).otherwise(F.col(c.FLOOR))


def _gone_below() -> Column:
    risen = F.greatest(F.col(c.GONE_BELOW), F.col("new_floor"))
    return F.when(_after_fetch(), risen).otherwise(F.col(c.GONE_BELOW))
