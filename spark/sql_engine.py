"""The plan without Java: the same answer as ``plan``, told a second time in SQL.

The two share the policy function's results and nothing of the expressions, so that comparing them means
something.
"""

import sqlite3
from typing import Any

from conclave.retention.policy import PolicySettings
from spark.plan_types import GroupStep, Plan

_GROUPS = """
WITH ranked AS (
    SELECT group_key, effective, floor_seq, gone_below,
        max(expired_before, iif(effective > 0, :now - effective, 0)) AS cutoff,
        CASE WHEN effective = 0
            THEN max(floor_seq, (SELECT min(watermark) FROM members WHERE members.group_key = groups.group_key))
            ELSE floor_seq END AS reached
    FROM groups JOIN temp.effective_policies USING (message_expiry_seconds)
), planned AS (
    SELECT group_key, reached, iif(effective = 0, max(reached, gone_below), gone_below) AS gone, cutoff,
        reached > floor_seq OR (effective = 0 AND reached > gone_below) AS rises
    FROM ranked
)
SELECT group_key, reached, gone, cutoff FROM planned
WHERE rises
    OR EXISTS (SELECT 1 FROM messages WHERE messages.group_key = planned.group_key AND sequence_num <= gone)
    OR EXISTS (SELECT 1 FROM messages WHERE messages.group_key = planned.group_key AND created_at < cutoff)
ORDER BY group_key
"""


def make_plan(connection: sqlite3.Connection, settings: PolicySettings, now: int) -> Plan:
    """Plan a run from one snapshot of the hot store."""
    connection.execute("BEGIN")
    try:
        list_policies(connection, settings)
        groups = [GroupStep(*row) for row in connection.execute(_GROUPS, {"now": now})]
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


def list_policies(connection: sqlite3.Connection, settings: PolicySettings) -> None:
    """Make temp.effective_policies: what the policy function says of each setting that occurs among the groups."""
    connection.execute("CREATE TEMP TABLE effective_policies (message_expiry_seconds INTEGER PRIMARY KEY, effective)")
    occurring = connection.execute("SELECT DISTINCT message_expiry_seconds FROM groups").fetchall()
    connection.executemany(
        "INSERT INTO temp.effective_policies VALUES (?, ?)",
        [(setting, settings.effective(setting)) for (setting,) in occurring],
    )


def _keys(connection: sqlite3.Connection, query: str, *bounds: int) -> list[Any]:
    return [row[0] for row in connection.execute(query, bounds)]
