"""The data of the operators' page, from one snapshot.

Everything is read from indexes, small tables, and the tables of groups and archive parts. So with 10,000 groups it
takes some hundredths of a second, independently of the number of messages.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from conclave.retention import holds
from conclave.retention.holds import Hold
from conclave.retention.jobs import Scope
from conclave.retention.policy import AFTER_FETCH
from conclave.retention.rules import GOVERNED
from conclave.store.views import overdue, runs
from conclave.store.views.overdue import GroupBacklog
from conclave.store.views.runs import HISTORY_ROWS, Run

MAX_LISTED = 20
"""At most 20 groups of each kind are listed: the worst."""

MAX_HOLDS = 100
"""At most 100 legal holds are listed: the newest."""


@dataclass(frozen=True)
class PolicyCount:
    """The number of groups with a policy. Lifetimes: see GroupPolicy. ``source``: the source of the lifetime."""

    lifetime: int
    min_lifetime: int
    source: str
    groups: int


@dataclass(frozen=True)
class OverdueGroup:
    """A group with messages that could already be erased. ``is_late`` and the two others: see ``GroupBacklog``."""

    group_id: str
    name: str
    """Empty if the group is deleted."""
    since: int
    """A Unix second."""
    is_late: bool
    by_policy: bool
    by_mark: bool


@dataclass(frozen=True)
class LaggingGroup:
    """A delete-after-fetch group in which some members have not fetched messages that others have."""

    group_id: str
    name: str
    members: int
    """The number of members who are behind."""
    numbers: int
    """The difference between the greatest and the least watermark; some of these messages may be erased."""
    oldest: int | None
    """When the first of these messages in the hot store was stored, Unix seconds; None: there is none."""


@dataclass(frozen=True)
class Overview:
    """The store at the Unix second ``at``.

    ``overdue`` and ``waiting``: the worst groups, MAX_LISTED at most; ``overdue_groups``, ``late_groups`` and
    ``waiting_groups``: how many there are.
    """

    at: int
    groups: int
    users: int
    policies: list[PolicyCount]
    overdue: list[OverdueGroup]
    overdue_groups: int
    late_groups: int
    waiting: list[LaggingGroup]
    waiting_groups: int
    holds: list[Hold]
    hold_count: int
    runs: list[Run]
    """The history, newest first."""
    archived_messages: int
    archived_bytes: int


def read_overview(connection: sqlite3.Connection, schedule: Sequence[tuple[Scope, int]], now: int) -> Overview:
    """Return the overview at the Unix second ``now``. ``schedule``: see ``GroupBacklog.is_late``."""
    backlogs = overdue.find(connection, now, schedule=schedule)
    lagging = sorted(_lagging_groups(connection), key=lambda each: each[1], reverse=True)
    all_holds = holds.list_all(connection)
    archived_row = connection.execute(
        "SELECT ifnull(sum(message_count), 0), ifnull(sum(body_bytes), 0) FROM archive_parts"
    ).fetchone()
    return Overview(
        at=now,
        groups=_query_number(connection, "SELECT count(*) FROM groups"),
        users=_query_number(connection, "SELECT count(*) FROM users"),
        policies=_policies(connection),
        overdue=list(_overdue_groups(connection, backlogs, schedule, now)),
        overdue_groups=len(backlogs),
        late_groups=sum(each.is_late(schedule, now) for each in backlogs.values()),
        waiting=[_lagging_group(connection, *each) for each in lagging[:MAX_LISTED]],
        waiting_groups=len(lagging),
        holds=all_holds[: -MAX_HOLDS - 1 : -1],
        hold_count=len(all_holds),
        runs=runs.last(connection, HISTORY_ROWS),
        archived_messages=archived_row[0],
        archived_bytes=archived_row[1],
    )


def _policies(connection: sqlite3.Connection) -> list[PolicyCount]:
    """Count the existing groups by policy, most frequent first."""
    rows = connection.execute(
        "SELECT effective_expiry, least_lifetime, policy_source, count(*) AS count FROM groups GROUP BY 1, 2, 3"
        " ORDER BY count DESC"
    )
    return [PolicyCount(*row) for row in rows]


def _overdue_groups(
    connection: sqlite3.Connection,
    backlogs: Mapping[int, GroupBacklog],
    schedule: Sequence[tuple[Scope, int]],
    now: int,
) -> Iterator[OverdueGroup]:
    """Yield the groups that are overdue for longest."""
    for each in sorted(backlogs.values(), key=lambda one: one.since)[:MAX_LISTED]:
        row = connection.execute(
            "SELECT group_id, group_name FROM groups WHERE group_key = ?1"
            " UNION ALL SELECT group_id, '' FROM tombstones WHERE group_key = ?1",
            (each.group_key,),
        ).fetchone()
        group_id, name = row or (b"", "")
        by_policy, by_mark = each.by_policy is not None, each.by_mark is not None
        yield OverdueGroup(_uuid_text(group_id), name, each.since, each.is_late(schedule, now), by_policy, by_mark)


def _lagging_groups(connection: sqlite3.Connection) -> list[tuple[int, int]]:
    """Return the delete-after-fetch groups with lagging members: the key, and the difference of the watermarks."""
    rows = connection.execute(
        f"WITH {GOVERNED}, reached AS (SELECT group_key, gone,"
        " (SELECT max(watermark) FROM members WHERE members.group_key = governed_groups.group_key) AS most"
        f" FROM governed_groups WHERE effective_expiry = {AFTER_FETCH})"
        " SELECT group_key, most - gone FROM reached WHERE most > gone",
        {"now": 0},
    )
    return [(row[0], row[1]) for row in rows]


def _lagging_group(connection: sqlite3.Connection, group_key: int, numbers: int) -> LaggingGroup:
    group_id, name, gone_below, max_watermark = connection.execute(
        "SELECT group_id, group_name, gone_below,"
        " (SELECT max(watermark) FROM members WHERE members.group_key = groups.group_key)"
        " FROM groups WHERE group_key = ?",
        (group_key,),
    ).fetchone()
    behind = _query_number(
        connection, "SELECT count(*) FROM members WHERE group_key = ? AND watermark < ?", group_key, max_watermark
    )
    oldest = connection.execute(
        "SELECT created_at FROM messages WHERE group_key = ? AND sequence_num > ? AND sequence_num <= ?"
        " ORDER BY sequence_num LIMIT 1",
        (group_key, max(gone_below, max_watermark - numbers), max_watermark),
    ).fetchone()
    return LaggingGroup(_uuid_text(group_id), name, behind, numbers, oldest[0] if oldest else None)


def _query_number(connection: sqlite3.Connection, sql: str, *values: int) -> int:
    return int(connection.execute(sql, values).fetchone()[0])


def _uuid_text(group_id: bytes) -> str:
    return str(UUID(bytes=group_id)) if group_id else ""
