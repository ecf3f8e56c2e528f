"""Makes the plan without Java: the rules of ``plan`` a second time, in SQL.

The two share the policy of each group, but none of the expressions. So comparing their answers tests both.
"""

import sqlite3
from typing import Any

from conclave.retention.resolve import PolicySettings
from conclave.store import policies
from spark.plan_types import GroupStep, Plan

_GROUPS = """
WITH ranked AS (
    SELECT group_key, lifetime, floor_seq, gone_below, max(expired_before, expires_before) AS cutoff,
        CASE WHEN lifetime = 0
            THEN max(floor_seq, (SELECT min(watermark) FROM members WHERE members.group_key = groups.group_key))
            ELSE floor_seq END AS reached
    FROM groups JOIN temp.group_policies USING (group_key)
), planned AS (
    SELECT group_key, reached, iif(lifetime = 0, max(reached, gone_below), gone_below) AS gone, cutoff,
        reached > floor_seq OR (lifetime = 0 AND reached > gone_below) AS rises
    FROM ranked
)
SELECT group_key, reached, gone, cutoff FROM planned
WHERE rises
    OR gone > 0 AND EXISTS (
        SELECT 1 FROM messages WHERE messages.group_key = planned.group_key AND sequence_num <= gone
    )
    OR EXISTS (SELECT 1 FROM messages WHERE messages.group_key = planned.group_key AND created_at < cutoff)
ORDER BY group_key
"""


def make_plan(connection: sqlite3.Connection, settings: PolicySettings, now: int) -> Plan:
    """Plan a run from one snapshot of the hot store, as of the Unix second ``now``."""
    connection.execute("BEGIN")
    try:
        policies.list_all(connection, settings, now)
        groups = [GroupStep(*row) for row in connection.execute(_GROUPS)]
        tombstones = _keys(connection, "SELECT group_key FROM tombstones ORDER BY group_key")
        deleted_accounts = _keys(connection, "SELECT user_id FROM user_tombstones ORDER BY user_id")
        sessions = _keys(
            connection,
            "SELECT session_id FROM sessions WHERE expires_at < ? ORDER BY session_id",
            settings.sessions_dead_before(now),
        )
        invites = _keys(
            connection,
            "SELECT invite_key FROM invites WHERE created_at < ? ORDER BY invite_key",
            settings.invites_dead_before(now),
        )
    finally:
        connection.execute("ROLLBACK")
    return Plan(now, groups, tombstones, deleted_accounts, sessions, invites)


def _keys(connection: sqlite3.Connection, query: str, *bounds: int) -> list[Any]:
    return [row[0] for row in connection.execute(query, bounds)]
