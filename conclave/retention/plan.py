"""Plans a run in SQL, without Java: the marks to raise, and the groups with due messages.

``spark/plan.py`` makes the same plan with Spark expressions from the same rows, and tests compare both. Both use SQLite
to find withheld messages and those redacted for every reader; the model in the tests checks that.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from conclave.retention.jobs import ALL, Scope
from conclave.retention.resolve import PolicySettings
from conclave.retention.rules import ANY_RUN_RULES, GOVERNED, POLICY_RULES, RULES, Bounds


@dataclass(frozen=True)
class GroupStep:
    """A group that a run changes, with its marks after the run.

    Messages are due if their number is at most ``gone_below``, or if they were created before ``expired_before``
    (exclusive, Unix seconds), except commits with numbers greater than ``commits_above``. Due messages created before
    ``erasable_before`` (exclusive, Unix seconds) are deleted; 0: only the marks rise. ``redacts``: 1 if messages
    are due that are redacted for every reader (all timers ended, or taken back), otherwise 0.
    """

    group_key: int
    floor_seq: int
    gone_below: int
    expired_before: int
    erasable_before: int
    commits_above: int
    redacts: int = 0


@dataclass(frozen=True)
class Plan:
    """The deletions of one run at the Unix second ``now``. Keys are in ascending order.

    ``tombstones``: keys of deleted groups. ``deleted_accounts``: user ids; all their messages are due, except commits.
    Only messages that are old enough and under no legal hold are deleted.
    """

    now: int
    groups: list[GroupStep] = field(default_factory=list)
    tombstones: list[int] = field(default_factory=list)
    deleted_accounts: list[bytes] = field(default_factory=list)
    sessions: list[int] = field(default_factory=list)
    invites: list[int] = field(default_factory=list)

    @property
    def risen(self) -> list[tuple[int, int]]:
        """The marks ``gone_below`` that the run raises first, with the keys of their groups."""
        return [(step.gone_below, step.group_key) for step in self.groups]


_GROUPS = f"""
WITH {GOVERNED}, planned AS (
    SELECT group_key, new_floor, gone, cutoff, erasable_before, commits_above, gone_below, expired_before,
        {{covered}} AS covered, {{is_redacted}} AS redacts, new_floor > floor_seq OR gone > gone_below AS rises
    FROM governed_groups AS planned
)
SELECT group_key, new_floor, gone, cutoff, erasable_before, commits_above, redacts FROM planned
WHERE (covered OR redacts OR {{is_past}}) AND (rises OR redacts OR {{is_due}})
ORDER BY group_key
"""
"""Selects the groups of the run in which messages are due or a mark rises.

A group with messages past a mark, or redacted for every reader, belongs to every run.
"""


def make_plan(connection: sqlite3.Connection, settings: PolicySettings, now: int, scope: Scope = ALL) -> Plan:
    """Plan a run at the Unix second ``now``. Call it in a transaction, for a consistent snapshot."""
    query = _groups_query(Bounds().as_needed(connection), scope)
    groups = [GroupStep(*row) for row in connection.execute(query, {"now": now})]
    tombstones = _keys(connection, "SELECT group_key FROM tombstones ORDER BY group_key")
    deleted_accounts = _keys(connection, "SELECT user_id FROM user_tombstones ORDER BY user_id")
    if not scope.is_housekeeping:
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


def _groups_query(bounds: Bounds, scope: Scope) -> str:
    return _GROUPS.format(
        covered=scope.covered,
        is_redacted=_is_any(ANY_RUN_RULES, bounds),
        is_past=_is_any(POLICY_RULES, bounds._replace(gone="gone_below", cutoff="expired_before")),
        is_due=_is_any(POLICY_RULES, bounds),
    )


def _is_any(rules: Sequence[str], bounds: Bounds) -> str:
    """Return the condition for groups in which a message is due by one of the rules."""
    exists = (
        f"{rule.only_if(bounds)} AND EXISTS"
        f" (SELECT 1 FROM {rule.tables} WHERE group_key = planned.group_key AND {rule.due(bounds)})"
        for rule in (RULES[each] for each in rules)
    )
    return f"({' OR '.join(exists)})"


def _keys(connection: sqlite3.Connection, query: str, *bounds: int) -> list[Any]:
    return [row[0] for row in connection.execute(query, bounds)]
