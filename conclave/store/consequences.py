"""The consequences of new policy settings: settles the marks for them, and counts which messages they hide at once.

The server asks when it starts with other settings than before. Operators ask before, without changing anything: what
would be written goes into copies of the tables ``groups`` and ``self_destructing`` that only their connection has.
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from conclave.retention.policy import GroupPolicy, expiry_cutoff
from conclave.retention.resolve import PolicySettings
from conclave.store import bodies, marks, policies

LARGE_SHARE = 0.1
"""A change is large if it hides more than a tenth of all messages at once."""

MEASURED = 4096
"""The bodies of 4,096 messages are measured by one statement."""


@dataclass
class Change:
    """What other settings do at once.

    ``groups``: those whose policy differs. ``sooner``: those of them in which messages may be erased sooner than
    before. ``hiding``: those in which messages become hidden: ``messages`` with ``body_bytes`` in the database, and
    ``archived`` with ``archived_bytes`` in the archive. ``is_exact``: False if those of the archive are at most so
    many. ``total``: all messages of living groups; 0 if none becomes hidden.
    """

    groups: int = 0
    sooner: int = 0
    hiding: int = 0
    messages: int = 0
    body_bytes: int = 0
    archived: int = 0
    archived_bytes: int = 0
    is_exact: bool = True
    total: int = 0

    @property
    def hidden(self) -> int:
        """How many messages become hidden, at most."""
        return self.messages + self.archived

    @property
    def is_large(self) -> bool:
        """Whether so much becomes hidden that somebody should have looked."""
        return self.hidden > LARGE_SHARE * self.total


class _Bounds(NamedTuple):
    """What is hidden of a group: numbers up to ``gone``; what was created before ``before``.

    Commits with numbers greater than ``commits_above`` are not hidden by age.
    """

    gone: int
    before: int
    commits_above: int


_BOUNDS = (
    "SELECT gone_below, expired_before, max(floor_seq, ifnull("
    "(SELECT min(watermark) FROM members WHERE members.group_key = groups.group_key), 0)) AS reached"
    " FROM groups WHERE group_key = ?"
)

_SEEN = (
    "group_key = :group_key AND sequence_num > max(:gone, (SELECT archived_seq FROM groups WHERE group_key ="
    " :group_key)) AND (is_commit OR sender_id NOT IN (SELECT user_id FROM user_tombstones))"
)
"""The condition for messages of the hot store that are neither gone nor copies, nor of deleted accounts."""

_NEWLY_HIDDEN = f"""
SELECT message_id FROM messages WHERE {_SEEN} AND sequence_num <= :new_gone
    AND (created_at >= :before OR is_commit AND sequence_num > :commits_above)
UNION
SELECT message_id FROM messages WHERE {_SEEN} AND created_at >= :before AND created_at < :new_before
    AND NOT (is_commit AND sequence_num > :new_commits_above)
UNION
SELECT message_id FROM messages WHERE {_SEEN} AND created_at < :before
    AND is_commit AND sequence_num > :commits_above AND sequence_num <= :new_commits_above
"""
"""By number; by age; commits that were kept and are not any more. Each looks at a range of an index only."""

_TOTAL = """
SELECT ifnull(sum((SELECT count(*) FROM messages
        WHERE messages.group_key = groups.group_key AND sequence_num > archived_seq)), 0)
    + (SELECT ifnull(sum(message_count), 0) FROM archive_parts JOIN groups USING (group_key)
        WHERE first_seq <= archived_seq)
FROM groups
"""


def settle(
    connection: sqlite3.Connection,
    old: PolicySettings,
    new: PolicySettings,
    at: int,
    now: int,
    *,
    is_measured: bool = False,
) -> Change:
    """Settle the marks of every group whose policy differs between ``old`` and ``new``; return what that hides.

    ``at``: the last Unix second at which ``old`` was in force. ``now``: the first of ``new``. ``is_measured``: bytes
    are counted too; that takes much longer.
    """
    change, hiding = Change(), set[int]()
    is_other_age = old.self_destruct_max_age != new.self_destruct_max_age
    if is_other_age:
        marks.end_timed(connection, expiry_cutoff(at, old.self_destruct_max_age))
    for group_key, before, after in list(policies.changed(connection, old, new)):
        former = _bounds(connection, group_key, before, at)
        marks.settle(connection, group_key, before, after, at)
        current = _bounds(connection, group_key, after, now)
        change.groups += 1
        change.sooner += after.erasable_before(now) > before.erasable_before(now)
        # What expired while the server was stopped, and would have under the old settings too, is no consequence.
        if (
            current != former
            and not after.hides_as(before)
            and _count(connection, group_key, former, current, change, is_measured=is_measured)
        ):
            hiding.add(group_key)
    if is_other_age:
        hiding |= _count_too_old(connection, new, now, change, is_measured=is_measured)
    change.hiding = len(hiding)
    if change.hidden:
        change.total = connection.execute(_TOTAL).fetchone()[0]
    return change


def rehearse(
    connection: sqlite3.Connection, old: PolicySettings, new: PolicySettings, now: int, *, is_measured: bool = False
) -> Change:
    """Do as a start with ``new`` at the Unix second ``now`` would, for this connection alone; return what it hides.

    From here on the connection, which may be a reading one, sees the groups and timers as they would be. Nothing is
    written to the database.
    """
    connection.execute("CREATE TEMP TABLE groups AS SELECT * FROM main.groups")
    connection.execute("CREATE TEMP TABLE self_destructing AS SELECT * FROM main.self_destructing")
    connection.execute("CREATE UNIQUE INDEX temp.rehearsed_by_number ON self_destructing (group_key, sequence_num)")
    connection.execute("CREATE UNIQUE INDEX temp.rehearsed_by_key ON groups (group_key)")
    connection.execute("CREATE INDEX temp.rehearsed_by_id ON groups (group_id)")
    connection.execute("CREATE INDEX temp.rehearsed_by_policy ON groups (message_expiry_seconds, min_lifetime_seconds)")
    at = connection.execute("SELECT max(last_alive, acted_until) FROM server_state").fetchone()[0]
    return settle(connection, old, new, at, now, is_measured=is_measured)


def unknown_groups(connection: sqlite3.Connection, settings: PolicySettings) -> list[str]:
    """Return the ids of the groups that overrides name and that do not exist, as text."""
    return [
        group_id
        for group_id, raw in zip(settings.groups, settings.overrides, strict=True)
        if not connection.execute("SELECT 1 FROM groups WHERE group_id = ?", (raw,)).fetchone()
    ]


def _count_too_old(
    connection: sqlite3.Connection, new: PolicySettings, now: int, change: Change, *, is_measured: bool
) -> set[int]:
    """Add to ``change`` the self-destructing messages that are too old for somebody from now on; return their groups.

    Call it when all marks are settled: what a policy or a mark hides, the former or the new one, is counted already, or
    is no consequence.
    """
    rows = connection.execute(
        "SELECT group_key, group_id, message_expiry_seconds, min_lifetime_seconds, message_id, sequence_num,"
        " messages.created_at FROM self_destructing JOIN messages USING (group_key, sequence_num)"
        f" JOIN groups USING (group_key) WHERE NOT ended AND messages.created_at < ? AND {policies.UNREAD}"
        " AND sender_id NOT IN (SELECT user_id FROM user_tombstones) ORDER BY group_key",
        (expiry_cutoff(now, new.self_destruct_max_age),),
    ).fetchall()
    hiding = set[int]()
    for group_key, of_group in groupby(rows, key=itemgetter("group_key")):
        timed = list(of_group)
        bounds = _bounds(connection, group_key, new.of_group(*timed[0][1:4]), now)
        hidden = [
            message_id for *_, message_id, number, second in timed if number > bounds.gone and second >= bounds.before
        ]
        if hidden:
            hiding.add(group_key)
        change.messages += len(hidden)
        for begin in range(0, len(hidden) if is_measured else 0, MEASURED):
            change.body_bytes += bodies.total_size(connection, hidden[begin : begin + MEASURED])
    return hiding


def _bounds(connection: sqlite3.Connection, group_key: int, policy: GroupPolicy, now: int) -> _Bounds:
    row = connection.execute(_BOUNDS, (group_key,)).fetchone()
    gone = max(row["gone_below"], row["reached"]) if policy.is_after_fetch else row["gone_below"]
    before = policies.hidden_before(row["expired_before"], policy, now)
    return _Bounds(gone, before, policies.commits_above(connection, group_key, policy))


def _count(
    connection: sqlite3.Connection,
    group_key: int,
    former: _Bounds,
    current: _Bounds,
    change: Change,
    *,
    is_measured: bool,
) -> bool:
    """Add to ``change`` what of a group is hidden by ``current`` and was not by ``former``; tell whether any is."""
    values = {"group_key": group_key, **former._asdict()}
    values |= {f"new_{name}": value for name, value in current._asdict().items()}
    if is_measured:
        found = [row[0] for row in connection.execute(_NEWLY_HIDDEN, values)]
        count = len(found)
        for begin in range(0, count, MEASURED):
            change.body_bytes += bodies.total_size(connection, found[begin : begin + MEASURED])
    else:
        count = connection.execute(f"SELECT count(*) FROM ({_NEWLY_HIDDEN})", values).fetchone()[0]
    archived = 0
    for messages, body_bytes, is_whole in _archived(connection, group_key, former, current):
        archived += messages
        change.archived_bytes += body_bytes
        change.is_exact = change.is_exact and is_whole
    change.messages += count
    change.archived += archived
    return bool(count or archived)


def _archived(
    connection: sqlite3.Connection, group_key: int, former: _Bounds, current: _Bounds
) -> Iterator[tuple[int, int, bool]]:
    """Yield the parts of the archive in which messages become hidden: messages, bytes, whether all of them do."""
    has_deleted = connection.execute(
        "SELECT 1 FROM archive_senders JOIN user_tombstones ON user_id = sender_id WHERE group_key = ?", (group_key,)
    ).fetchone()
    for part in connection.execute(
        "SELECT parts.* FROM archive_parts AS parts JOIN groups USING (group_key) WHERE parts.group_key = ?"
        " AND first_seq <= archived_seq AND parts.last_seq > ? AND (oldest < ? OR first_seq <= ?)",
        (group_key, former.gone, current.before, current.gone),
    ):
        by_number = former.gone < current.gone and part["first_seq"] <= current.gone
        by_age = former.before < current.before and former.before <= part["newest"]
        by_letting_go = former.commits_above < current.commits_above and part["last_seq"] > former.commits_above
        if not (by_number or (part["oldest"] < current.before and (by_age or by_letting_go))):
            continue
        was_seen = part["first_seq"] > former.gone and part["oldest"] >= former.before
        is_hidden = part["last_seq"] <= current.gone or (
            part["newest"] < current.before and part["last_seq"] <= current.commits_above
        )
        yield part["message_count"], part["body_bytes"], was_seen and is_hidden and not has_deleted
