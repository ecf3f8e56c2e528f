"""Makes the plan without Java: the rules of ``plan`` a second time, in SQL.

Both go by the policy of each group, and both have SQLite tell them what is withheld and which messages are redacted for
everybody (``store/policies.py``, ``store/visibility.py``). ``read.py`` has SQLite find the oldest messages that Spark
then compares with the marks; here SQLite compares too. What is due and which mark rises is written twice, so comparing
their answers tests that, and not what they share.
"""

import sqlite3
from typing import Any

from conclave.retention.jobs import ALL, Scope
from conclave.retention.resolve import PolicySettings
from conclave.store import policies, visibility
from spark.plan_types import GroupStep, Plan

_GROUPS = """
WITH ranked AS (
    SELECT group_key, lifetime, floor_seq, gone_below, expired_before, erasable_before, covered,
        max(expired_before, expires_before) AS cutoff, {commits_above} AS commits_above, self_destructs,
        CASE WHEN lifetime = 0
            THEN max(floor_seq, (SELECT min(watermark) FROM members WHERE members.group_key = groups.group_key))
            ELSE floor_seq END AS reached
    FROM groups JOIN temp.group_policies USING (group_key)
), planned AS (
    SELECT group_key, reached, iif(lifetime = 0, max(reached, gone_below), gone_below) AS gone, cutoff,
        erasable_before, commits_above, gone_below, expired_before, covered, {has_redacted} AS redacts,
        reached > floor_seq OR (lifetime = 0 AND reached > gone_below) AS rises
    FROM ranked
)
SELECT group_key, reached, gone, cutoff, erasable_before, commits_above, redacts FROM planned
WHERE (covered OR redacts OR {has_gone_before} OR {has_expired_before})
    AND (rises OR redacts OR {has_gone} OR {has_expired})
ORDER BY group_key
"""
"""The groups that belong to the run, and in which something is due or a mark rises.

A group belongs to every run if something in it is past a mark already, or redacted for everybody.
"""


def make_plan(connection: sqlite3.Connection, settings: PolicySettings, now: int, scope: Scope = ALL) -> Plan:
    """Plan a run from one snapshot of the hot store, as of the Unix second ``now``."""
    connection.execute("BEGIN")
    try:
        return plan_snapshot(connection, settings, now, scope)
    finally:
        connection.execute("ROLLBACK")


def plan_snapshot(connection: sqlite3.Connection, settings: PolicySettings, now: int, scope: Scope) -> Plan:
    """Do as ``make_plan`` in a transaction that the caller has begun."""
    policies.list_all(connection, settings, now, scope.covers)
    groups = [GroupStep(*row) for row in connection.execute(_groups_query(connection, settings, now))]
    tombstones = _keys(connection, "SELECT group_key FROM tombstones ORDER BY group_key")
    deleted_accounts = _keys(connection, "SELECT user_id FROM user_tombstones ORDER BY user_id")
    if not scope.keeps_house:
        return Plan(now, groups, tombstones, deleted_accounts)
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
    return Plan(now, groups, tombstones, deleted_accounts, sessions, invites)


def _groups_query(connection: sqlite3.Connection, settings: PolicySettings, now: int) -> str:
    """Return the query for the steps. Conditions that nothing needs are left out: each would cost every group."""
    unheld = f" AND {policies.UNHELD}" if policies.has_held_senders(connection) else ""
    of_age = f"{unheld} AND NOT (is_commit AND sequence_num > commits_above)" if settings.retain_commits else unheld

    def gone(mark: str) -> str:
        return f"({mark} > 0 AND {_exists(f'sequence_num <= {mark} AND created_at < erasable_before{unheld}')})"

    def expired(mark: str) -> str:
        return f"({mark} > 0 AND {_exists(f'created_at < min({mark}, erasable_before){of_age}')})"

    redacted = visibility.redacted_for_all(now, settings.self_destruct_max_age)
    return _GROUPS.format(
        has_redacted=(
            f"(self_destructs AND EXISTS (SELECT 1 FROM {visibility.TIMED} WHERE self_destructing.group_key ="
            f" ranked.group_key AND created_at < erasable_before{unheld} AND {redacted}))"
        ),
        commits_above=policies.commits_above_of(settings),
        has_gone_before=gone("gone_below"),
        has_expired_before=expired("expired_before"),
        has_gone=gone("gone"),
        has_expired=expired("cutoff"),
    )


def _exists(condition: str) -> str:
    return f"EXISTS (SELECT 1 FROM messages WHERE messages.group_key = planned.group_key AND {condition})"


def _keys(connection: sqlite3.Connection, query: str, *bounds: int) -> list[Any]:
    return [row[0] for row in connection.execute(query, bounds)]
