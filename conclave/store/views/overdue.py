"""Overdue erasures: groups with messages that could already be erased, and the time since when.

A message is overdue from the second at which it is permanently hidden and old enough, unless ``min_lifetime``, a legal
hold or ``enabled = false`` withholds it, until a run erases it. Used by the report of a run, health and operators'
commands.

Only indexes are read, so some results are bounds, and underestimates: a group that is not overdue is never listed.
Messages hidden by a mark have no due time, so they count from the last successful run, which would have erased them. A
decision about a group, such as a new policy, makes old messages due at once, so they count from that decision. The
index of the archive has no single messages: parts that may have kept commits do not count, and no parts count while
any user is under a legal hold.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from conclave.retention.holds import HELD_SENDERS
from conclave.retention.jobs import EVERYTHING, Scope
from conclave.retention.policy import GroupPolicy
from conclave.retention.rules import (
    DELETED_ACCOUNT,
    DELETED_GROUP,
    ENDS_AT,
    EXPIRED,
    FETCHED,
    GOVERNED,
    POLICY_COLUMNS,
    REDACTED,
    RULES,
    TAKEN_BACK,
    TIMED,
    Bounds,
    certain_of_part,
    may_erase,
    policy_of_row,
)
from conclave.store.resources.audit import AuditAction
from conclave.store.sender_index import SENT
from conclave.store.views import runs

LATE_AFTER_RUNS = 2
"""A group is late if it is overdue for longer than two intervals of its job."""


@dataclass(frozen=True)
class GroupBacklog:
    """Since when messages of a group are overdue, in Unix seconds; None: no such messages.

    ``by_policy``: messages that have expired by age, or were fetched by all; runs that cover ``policy`` erase them.
    ``by_mark``: messages hidden by a mark, redacted for every reader, taken back, or of a deleted group or account; any
    run erases them.
    """

    group_key: int
    policy: GroupPolicy
    by_policy: int | None
    by_mark: int | None

    @property
    def since(self) -> int:
        """The earlier of the two."""
        return min(each for each in (self.by_policy, self.by_mark) if each is not None)

    def is_late(self, schedule: Iterable[tuple[Scope, int]], now: int) -> bool:
        """Return whether runs that should have erased them were skipped, failed or ineffective.

        ``schedule``: the jobs, and their intervals in seconds. A group that no job covers is not late.
        """
        policy_intervals = [interval for scope, interval in schedule if scope.covers(self.policy)]
        all_intervals = [interval for _, interval in schedule]
        return any(
            since is not None and intervals and now - since > LATE_AFTER_RUNS * min(intervals)
            for since, intervals in ((self.by_policy, policy_intervals), (self.by_mark, all_intervals))
        )


@dataclass(frozen=True)
class OverdueTotal:
    """The number of overdue groups, and the longest time in seconds; 0 and 0: none."""

    groups: int = 0
    seconds: int = 0


def total_overdue(connection: sqlite3.Connection, now: int) -> OverdueTotal:
    """Return the overdue total at the second ``now``."""
    return _total(find(connection, now).values(), now)


def with_late(
    connection: sqlite3.Connection, schedule: Sequence[tuple[Scope, int]], now: int
) -> tuple[OverdueTotal, OverdueTotal]:
    """Return the overdue total at the second ``now``, and the part of it that is late.

    ``schedule``: see ``GroupBacklog.is_late``.
    """
    backlogs = find(connection, now, schedule=schedule).values()
    return _total(backlogs, now), _total((due for due in backlogs if due.is_late(schedule, now)), now)


def _total(backlogs: Iterable[GroupBacklog], now: int) -> OverdueTotal:
    seconds = [max(0, now - due.since) for due in backlogs]
    return OverdueTotal(len(seconds), max(seconds, default=0))


def find(
    connection: sqlite3.Connection,
    now: int,
    group_key: int | None = None,
    schedule: Sequence[tuple[Scope, int]] = (),
) -> dict[int, GroupBacklog]:
    """Return the overdue groups at the second ``now``, by group key; or only one group.

    ``schedule``: the jobs; without it, each run in the history counts as one that covers all groups. Writes nothing,
    not even to temporary tables. For a deleted account only one group is returned, that of an early message.
    """
    if not any(_has_rows(connection, f"{table} WHERE erases") for table in ("groups", "tombstones")):
        return {}
    search = _Search(connection, now, group_key, schedule)
    backlogs: dict[int, GroupBacklog] = {}
    for backlog in (
        *search.existing_groups(),
        *search.redacted(),
        *search.taken_back(),
        *search.deleted_groups(),
        *search.deleted_accounts(),
    ):
        former = backlogs.get(backlog.group_key)
        backlogs[backlog.group_key] = _merge(former, backlog) if former else backlog
    return backlogs


def _has_rows(connection: sqlite3.Connection, table: str) -> bool:
    """Return whether a table, with an optional condition, has any row."""
    return bool(connection.execute(f"SELECT EXISTS (SELECT 1 FROM {table})").fetchone()[0])


_EXISTING = """
, reaching AS (
    SELECT *, min(cutoff, erasable_before) AS aged_before FROM governed_groups WHERE erasable_before > 0 {only}
), looked AS (
    SELECT {columns}, group_key, group_id, gone_below,
        (SELECT min(created_at) FROM messages WHERE messages.group_key = reaching.group_key AND {expired}) AS aged_hot,
        (SELECT min(oldest) FROM archive_parts AS parts WHERE parts.group_key = reaching.group_key
            AND span < aged_before AND {expired_part}) AS aged_archived,
        (SELECT iif({old_enough}, sequence_num, NULL) FROM messages
            WHERE messages.group_key = reaching.group_key AND {fetched} ORDER BY sequence_num LIMIT 1) AS fetched_hot,
        iif(gone > 0, (SELECT min(first_seq) FROM archive_parts AS parts
            WHERE parts.group_key = reaching.group_key AND {fetched_part}), NULL) AS fetched_archived
    FROM reaching
)
SELECT *, (SELECT {marked} FROM (SELECT fetched_hot AS sequence_num)) AS is_hot_marked,
    (SELECT {marked} FROM (SELECT fetched_archived AS sequence_num)) AS is_archived_marked,
    (SELECT created_at FROM messages WHERE messages.group_key = looked.group_key
        AND sequence_num = fetched_hot) AS fetched_hot_at,
    (SELECT min(oldest) FROM archive_parts AS parts WHERE parts.group_key = looked.group_key
        AND first_seq = fetched_archived) AS fetched_archived_at
FROM looked
WHERE aged_hot IS NOT NULL OR aged_archived IS NOT NULL OR fetched_hot IS NOT NULL OR fetched_archived IS NOT NULL
"""
"""The groups with overdue messages.

If the oldest message of a part is hidden by age, so is the start of its span: the condition on ``span`` skips young
parts. Fetched messages are searched by number, so that only the first message is read.
"""

_REDACTED = """
SELECT {columns}, governed.group_key, group_id, messages.created_at, {ends_at} AS ends_at
FROM governed_groups AS governed CROSS JOIN {timed} WHERE self_destructing.group_key = governed.group_key
    AND governed.erasable_before > 0 AND {redacted} {of_governed}
"""

_TAKEN_BACK = """
SELECT {columns}, governed.group_key, group_id, messages.created_at, taken_at
FROM governed_groups AS governed CROSS JOIN {taken} WHERE taken_back.group_key = governed.group_key
    AND governed.erasable_before > 0 AND {is_taken} {of_governed}
"""

_DELETED_GROUPS = """
, looked AS (
    SELECT {columns}, group_key, group_id, deleted_at,
        (SELECT min(created_at) FROM messages
            WHERE messages.group_key = governed_tombstones.group_key AND {deleted}) AS hot,
        (SELECT min(oldest) FROM archive_parts AS parts
            WHERE parts.group_key = governed_tombstones.group_key AND {deleted_part}) AS archived
    FROM governed_tombstones WHERE erasable_before > 0 {only}
)
SELECT * FROM looked WHERE hot IS NOT NULL OR archived IS NOT NULL
"""

_DELETED_ACCOUNTS = """
, left_by AS (
    SELECT user_id, created_at AS deleted_at FROM user_tombstones
    WHERE user_id NOT IN ({held})
)
SELECT {columns}, deleted_at, min(messages.created_at) AS created_at, governed.group_key, group_id
FROM left_by CROSS JOIN {sent} AND sender_id = user_id JOIN governed_groups AS governed USING (group_key)
WHERE {of_deleted} {only} GROUP BY user_id
UNION ALL
SELECT {columns}, deleted_at, (SELECT max(newest) FROM archive_parts AS parts
    WHERE parts.group_key = governed.group_key) AS newest, governed.group_key, group_id
FROM left_by JOIN archive_senders ON sender_id = user_id JOIN governed_groups AS governed USING (group_key)
WHERE newest < erasable_before {only}
"""


class _Search:
    """A search for overdue groups."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        now: int,
        group_key: int | None,
        schedule: Sequence[tuple[Scope, int]],
    ) -> None:
        self._connection = connection
        self._now = now
        only = "" if group_key is None else f"AND group_key = {group_key:d}"
        self._conditions = _conditions(Bounds().as_needed(connection)) | {
            "columns": POLICY_COLUMNS,
            "held": HELD_SENDERS,
            "only": only,
            "of_governed": "" if group_key is None else f"AND governed.group_key = {group_key:d}",
            "sent": SENT,
            "timed": TIMED,
            "ends_at": ENDS_AT,
            "taken": RULES[TAKEN_BACK].tables,
        }
        self._values = {"now": now}
        self._schedule = schedule
        self._last_runs = runs.last_successes(connection)
        self._last_run = max(self._last_runs.values(), default=0)

    def existing_groups(self) -> Iterator[GroupBacklog]:
        """Yield the existing groups with messages that are overdue by age, by fetches or by a mark."""
        for row in self._rows(_EXISTING):
            policy = policy_of_row(*row[:6])
            by_policy, by_mark = [], []
            for created_at in (row["aged_hot"], row["aged_archived"]):
                if created_at is None:
                    continue
                expires_at = policy.expires_at(created_at)
                if 0 < expires_at <= self._now:
                    by_policy.append(max(expires_at, created_at + policy.min_lifetime))
                else:
                    by_mark.append(max(self._last_run, created_at + policy.min_lifetime))
            for created_at, is_marked in (
                (row["fetched_hot_at"], row["is_hot_marked"]),
                (row["fetched_archived_at"], row["is_archived_marked"]),
            ):
                if created_at is not None:
                    last_run = self._last_run if is_marked else self._last_run_over(policy)
                    due_times = by_mark if is_marked else by_policy
                    due_times.append(max(last_run, created_at + policy.min_lifetime))
            decided_at = self._last_decision(row["group_id"])
            by_both = (self._earliest(by_policy, decided_at), self._earliest(by_mark, decided_at))
            yield GroupBacklog(row["group_key"], policy, *by_both)

    def redacted(self) -> Iterator[GroupBacklog]:
        """Yield the groups with self-destructing messages that are redacted for all readers. Any run erases these."""
        if not _has_rows(self._connection, "self_destructing"):
            return
        for row in self._rows(_REDACTED):
            ended_at = max(row["ends_at"], self._last_run)  # it may have ended because a reader left
            yield self._by_mark(row, row["created_at"], ended_at)

    def taken_back(self) -> Iterator[GroupBacklog]:
        """Yield the groups with messages that were taken back and are in the hot store. Any run erases these."""
        if not _has_rows(self._connection, "taken_back"):
            return
        for row in self._rows(_TAKEN_BACK):
            taken_at = max(row["taken_at"], self._last_run)  # the last run may have been planned before
            yield self._by_mark(row, row["created_at"], taken_at)

    def deleted_groups(self) -> Iterator[GroupBacklog]:
        """Yield the deleted groups with messages that could be erased."""
        if not _has_rows(self._connection, "tombstones"):
            return
        for row in self._rows(_DELETED_GROUPS):
            oldest = min(each for each in (row["hot"], row["archived"]) if each is not None)
            yield self._by_mark(row, oldest, row["deleted_at"])

    def deleted_accounts(self) -> Iterator[GroupBacklog]:
        """Yield groups with messages of deleted accounts that could be erased."""
        if not _has_rows(self._connection, "user_tombstones"):
            return
        for row in self._rows(_DELETED_ACCOUNTS):
            yield self._by_mark(row, row["created_at"], row["deleted_at"])

    def _by_mark(self, row: sqlite3.Row, created_at: int, hidden_at: int) -> GroupBacklog:
        """Return the backlog of a group with a message that any run erases, hidden since ``hidden_at``."""
        policy = policy_of_row(*row[:6])
        due_at = max(hidden_at, created_at + policy.min_lifetime)
        return GroupBacklog(
            row["group_key"], policy, None, self._earliest([due_at], self._last_decision(row["group_id"]))
        )

    def _earliest(self, seconds: Sequence[int], decided_at: int) -> int | None:
        """Return the earliest of ``seconds``, limited to ``decided_at`` and now; None if there are none.

        Times may be in the future if the clock was ahead.
        """
        return min(self._now, max(min(seconds), decided_at)) if seconds else None

    def _rows(self, query: str) -> list[sqlite3.Row]:
        full_query = f"WITH {GOVERNED}{query.format(**self._conditions)}"
        return self._connection.execute(full_query, self._values).fetchall()

    def _last_run_over(self, policy: GroupPolicy) -> int:
        """Return the start of the last successful run that covers a policy; 0 if there is none."""
        job_names = {EVERYTHING, *(scope.name for scope, _ in self._schedule if scope.covers(policy))}
        return max((at for job, at in self._last_runs.items() if not self._schedule or job in job_names), default=0)

    def _last_decision(self, group_id: bytes) -> int:
        """Return the time of the last decision by an operator or admin about the group or all groups; 0 if unknown."""
        return max(self._last_decision_about(group_id), self._last_decision_about_all)

    def _last_decision_about(self, subject_id: bytes) -> int:
        row = self._connection.execute(
            "SELECT at FROM audit WHERE subject_id = ? AND action != ? ORDER BY audit_id DESC LIMIT 1",
            (subject_id, AuditAction.MESSAGE_TAKEN_BACK),  # about one message, with its own time
        ).fetchone()
        return int(row[0]) if row else 0

    @cached_property
    def _last_decision_about_all(self) -> int:
        """The time of the last decision about the server, or of the last release of a hold on a user."""
        released_at = self._connection.execute(
            "SELECT max(at) FROM audit WHERE action = ?", (AuditAction.USER_RELEASED,)
        ).fetchone()[0]
        return max(self._last_decision_about(b""), released_at or 0)


def _conditions(bounds: Bounds) -> dict[str, str]:
    """Return the conditions of the rules for the queries."""
    parts = {
        f"{name}_part": certain_of_part([rule], bounds)
        for name, rule in (("expired", EXPIRED), ("fetched", FETCHED), ("deleted", DELETED_GROUP))
    }
    return parts | {
        "expired": RULES[EXPIRED].due(bounds),
        "fetched": RULES[FETCHED].due(bounds._replace(erasable_before="")),
        "marked": RULES[FETCHED].hot(Bounds(gone="gone_below")),
        "old_enough": may_erase(bounds._replace(unheld="")),
        "redacted": RULES[REDACTED].due(bounds),
        "is_taken": RULES[TAKEN_BACK].due(bounds),
        "deleted": RULES[DELETED_GROUP].due(bounds),
        "of_deleted": RULES[DELETED_ACCOUNT].due(bounds),
    }


def _merge(one: GroupBacklog, other: GroupBacklog) -> GroupBacklog:
    """Return the combination of two results for one group, with the earlier seconds."""
    by_policy, by_mark = (
        min((each for each in pair if each is not None), default=None)
        for pair in ((one.by_policy, other.by_policy), (one.by_mark, other.by_mark))
    )
    return GroupBacklog(one.group_key, one.policy, by_policy, by_mark)
