"""What the operators' page shows of the store, from one snapshot: no message is looked at but those it names.

Everything is read by indexes, by small tables, or by the tables of groups and of the archive's parts. So it takes some
hundredths of a second with 10,000 groups, however many messages they have.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from conclave.retention.jobs import Scope
from conclave.retention.resolve import PolicySettings
from conclave.store import holds, overdue, runs
from conclave.store.holds import Hold
from conclave.store.overdue import Due
from conclave.store.runs import HISTORY_ROWS, Run

NAMED = 20
"""Of a kind, at most 20 groups are named: the worst."""

HOLDS_NAMED = 100
"""At most 100 legal holds are named: the newest."""


@dataclass(frozen=True)
class PolicyCount:
    """How many groups have a policy. Lifetimes as those of GroupPolicy; ``source``: what the lifetime comes from."""

    lifetime: int
    min_lifetime: int
    source: str
    groups: int


@dataclass(frozen=True)
class Overdue:
    """A group with something that could be erased already.

    ``name``: "" if the group is deleted. ``since``: a Unix second. ``is_late`` and the two others: see ``Due``.
    """

    group_id: str
    name: str
    since: int
    is_late: bool
    by_policy: bool
    by_mark: bool


@dataclass(frozen=True)
class Waiting:
    """A delete-after-fetch group in which some members have not fetched what others have.

    ``members``: how many have not. ``numbers``: how many message numbers lie between the slowest and the quickest
    member; some of these messages may be gone. ``oldest``: when the first of them in the database was stored, Unix
    seconds; None: it has none.
    """

    group_id: str
    name: str
    members: int
    numbers: int
    oldest: int | None


@dataclass(frozen=True)
class Overview:
    """The store at the Unix second ``at``.

    ``overdue`` and ``waiting``: the worst groups, NAMED at most; ``overdue_groups``, ``late_groups`` and
    ``waiting_groups``: how many there are. ``hot_bytes``: of bodies in the database. ``runs``: the history, newest
    first.
    """

    at: int
    groups: int
    users: int
    policies: list[PolicyCount]
    overdue: list[Overdue]
    overdue_groups: int
    late_groups: int
    waiting: list[Waiting]
    waiting_groups: int
    holds: list[Hold]
    hold_count: int
    runs: list[Run]
    hot_bytes: int
    archived_messages: int
    archived_bytes: int


def look(
    connection: sqlite3.Connection, settings: PolicySettings, schedule: Sequence[tuple[Scope, int]], now: int
) -> Overview:
    """Return what the store has at the Unix second ``now``. ``schedule``: see ``Due.is_late``."""
    due = overdue.find(connection, settings, now, schedule=schedule)
    waiting = sorted(_waiting(connection, settings), key=lambda each: each[1], reverse=True)
    held = holds.list_all(connection)
    archived = connection.execute(
        "SELECT ifnull(sum(message_count), 0), ifnull(sum(body_bytes), 0) FROM archive_parts"
    ).fetchone()
    return Overview(
        at=now,
        groups=_number(connection, "SELECT count(*) FROM groups"),
        users=_number(connection, "SELECT count(*) FROM users"),
        policies=_policies(connection, settings),
        overdue=list(_named(connection, due, schedule, now)),
        overdue_groups=len(due),
        late_groups=sum(each.is_late(schedule, now) for each in due.values()),
        waiting=[_described(connection, *each) for each in waiting[:NAMED]],
        waiting_groups=len(waiting),
        holds=held[: -HOLDS_NAMED - 1 : -1],
        hold_count=len(held),
        runs=runs.last(connection, HISTORY_ROWS),
        hot_bytes=_number(connection, "SELECT ifnull(sum(live_bytes), 0) FROM body_segments"),
        archived_messages=archived[0],
        archived_bytes=archived[1],
    )


def _policies(connection: sqlite3.Connection, settings: PolicySettings) -> list[PolicyCount]:
    """Count the living groups by policy, the most frequent first."""
    counts: Counter[tuple[int, int, str]] = Counter()
    of_setting: Counter[tuple[int, int]] = Counter(
        {
            (row[0], row[1]): row[2]
            for row in connection.execute(
                "SELECT message_expiry_seconds, min_lifetime_seconds, count(*) FROM groups GROUP BY 1, 2"
            )
        }
    )
    for group_id, policy in settings.overrides.items():
        row = connection.execute(
            "SELECT message_expiry_seconds, min_lifetime_seconds FROM groups WHERE group_id = ?", (group_id,)
        ).fetchone()
        if row:
            of_setting[row[0], row[1]] -= 1
            counts[policy.lifetime, policy.min_lifetime, policy.source.value] += 1
    for (lifetime, least), count in of_setting.items():
        policy = settings.of_setting(lifetime, least)
        counts[policy.lifetime, policy.min_lifetime, policy.source.value] += count
    return [PolicyCount(*policy, count) for policy, count in counts.most_common() if count]


def _named(
    connection: sqlite3.Connection, due: Mapping[int, Due], schedule: Sequence[tuple[Scope, int]], now: int
) -> Iterator[Overdue]:
    """Yield the groups for which something is overdue for longest."""
    for each in sorted(due.values(), key=lambda one: one.since)[:NAMED]:
        row = connection.execute(
            "SELECT group_id, group_name FROM groups WHERE group_key = ?1"
            " UNION ALL SELECT group_id, '' FROM tombstones WHERE group_key = ?1",
            (each.group_key,),
        ).fetchone()
        group_id, name = row or (b"", "")
        by_policy, by_mark = each.by_policy is not None, each.by_mark is not None
        yield Overdue(_text(group_id), name, each.since, each.is_late(schedule, now), by_policy, by_mark)


def _waiting(connection: sqlite3.Connection, settings: PolicySettings) -> Iterator[tuple[int, int]]:
    """Yield the delete-after-fetch groups in which somebody is behind: the key, and by how many numbers."""
    after_fetch = [
        row[:2]
        for row in connection.execute("SELECT DISTINCT message_expiry_seconds, min_lifetime_seconds FROM groups")
        if settings.of_setting(row[0], row[1]).is_after_fetch
    ]
    overridden = {group_id: policy.is_after_fetch for group_id, policy in settings.overrides.items()}
    chosen = [
        ("message_expiry_seconds = ? AND min_lifetime_seconds = ?", setting, False)
        for setting in map(tuple, after_fetch)
    ]
    chosen += [("group_id = ?", (group_id,), True) for group_id, is_chosen in overridden.items() if is_chosen]
    for condition, values, is_override in chosen:
        for key, group_id, most, least in connection.execute(
            "SELECT group_key, group_id,"
            " (SELECT max(watermark) FROM members WHERE members.group_key = groups.group_key) AS most,"
            " max(gone_below, (SELECT min(watermark) FROM members WHERE members.group_key = groups.group_key)) AS least"
            f" FROM groups WHERE {condition}",
            values,
        ):
            if most is not None and most > least and (is_override or group_id not in overridden):
                yield key, most - least


def _described(connection: sqlite3.Connection, group_key: int, numbers: int) -> Waiting:
    group_id, name, gone_below, most = connection.execute(
        "SELECT group_id, group_name, gone_below,"
        " (SELECT max(watermark) FROM members WHERE members.group_key = groups.group_key)"
        " FROM groups WHERE group_key = ?",
        (group_key,),
    ).fetchone()
    behind = _number(connection, "SELECT count(*) FROM members WHERE group_key = ? AND watermark < ?", group_key, most)
    oldest = connection.execute(
        "SELECT created_at FROM messages WHERE group_key = ? AND sequence_num > ? AND sequence_num <= ?"
        " ORDER BY sequence_num LIMIT 1",
        (group_key, max(gone_below, most - numbers), most),
    ).fetchone()
    return Waiting(_text(group_id), name, behind, numbers, oldest[0] if oldest else None)


def _number(connection: sqlite3.Connection, sql: str, *values: int) -> int:
    return int(connection.execute(sql, values).fetchone()[0])


def _text(group_id: bytes) -> str:
    return str(UUID(bytes=group_id)) if group_id else ""
