"""The effective policy of a group: when its messages are hidden, and when they may be erased.

Only this module decides it. Reads, marks, both engines of cleanup, moves to the archive and the archive itself ask
here. Anything that sets the policy of a single group, or delays an erasure, belongs here and nowhere else.

What a policy hides by age may be erased from that second on, if it is old enough (``erasable_before``) and no legal
hold covers it. What the marks of a group hide (``marks.py``) stays hidden, and may be erased under the same conditions,
even after the policy changes.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from conclave.retention.policy import FOREVER, GroupPolicy
from conclave.retention.resolve import PolicySettings


class Governed(Protocol):
    """The values of a group that its policy depends on."""

    @property
    def group_id(self) -> bytes:
        """The id, by which an operator can set the policy."""

    @property
    def message_expiry_seconds(self) -> int:
        """The group's own setting."""

    @property
    def min_lifetime_seconds(self) -> int:
        """The group's own setting."""


class Erasable(NamedTuple):
    """Which messages of a group may be erased at one moment, if they are hidden.

    ``expired_before``: those created before this Unix second, exclusive, are hidden by age or by the mark.
    ``before``: those created before this Unix second, exclusive, are old enough; 0: none may be erased.
    ``commits_above``: commits with greater numbers do not expire by age. ``is_deleted``: the group has a tombstone.
    """

    expired_before: int
    before: int
    commits_above: int
    is_deleted: bool


UNHELD = "sender_id NOT IN (SELECT user_id FROM holds WHERE user_id IS NOT NULL)"
"""The SQL condition for messages whose sender is under no legal hold."""

UNREAD = (
    "EXISTS (SELECT 1 FROM members AS behind WHERE behind.group_key = self_destructing.group_key"
    " AND behind.read_up_to < self_destructing.sequence_num AND behind.user_id != messages.sender_id)"
)
"""The SQL condition for self-destructing messages that somebody has not read who was a member when it was sent."""

_COMMITS_ABOVE = (
    "max(commits_below, ifnull((SELECT min(watermark) FROM members WHERE members.group_key = groups.group_key), 0))"
)


_STORED = (
    "SELECT group_id, message_expiry_seconds, min_lifetime_seconds, {},"
    " EXISTS (SELECT 1 FROM holds WHERE holds.group_key = stored.group_key) FROM {} AS stored WHERE group_key = ?"
)


def commits_above_of(settings: PolicySettings) -> str:
    """Return the SQL expression, over the table ``groups``, for the number above which commits do not expire by age."""
    return _COMMITS_ABOVE if settings.retain_commits else str(FOREVER)


def of_group(group: Governed, settings: PolicySettings) -> GroupPolicy:
    """Return the policy of a group under the server's settings."""
    return settings.of_group(group.group_id, group.message_expiry_seconds, group.min_lifetime_seconds)


def hidden_before(expired_before: int, policy: GroupPolicy, now: int) -> int:
    """Return before which second a group's messages are hidden at ``now``, by age or by its mark.

    Unix seconds, exclusive. ``expired_before``: the mark.
    """
    return max(expired_before, policy.expires_before(now))


def commits_above(connection: sqlite3.Connection, group_key: int, policy: GroupPolicy) -> int:
    """Return the number above which commits do not expire by age; FOREVER if all do."""
    if not policy.keeps_commits:
        return FOREVER
    row = connection.execute(f"SELECT {_COMMITS_ABOVE} FROM groups WHERE group_key = ?", (group_key,)).fetchone()
    return int(row[0]) if row else FOREVER


def find(connection: sqlite3.Connection, group_key: int, settings: PolicySettings) -> GroupPolicy | None:
    """Return the policy of a stored group, also of a deleted one that has a tombstone; None if it is gone."""
    for table in ("groups", "tombstones"):
        row = connection.execute(
            f"SELECT group_id, message_expiry_seconds, min_lifetime_seconds FROM {table} WHERE group_key = ?",
            (group_key,),
        ).fetchone()
        if row:
            return settings.of_group(*row)
    return None


def erasable(connection: sqlite3.Connection, group_key: int, settings: PolicySettings, now: int) -> Erasable | None:
    """Return what may be erased of a group at the Unix second ``now``, a deleted one included; None if it is gone."""
    row = connection.execute(_STORED.format("expired_before", "groups"), (group_key,)).fetchone()
    is_deleted = row is None
    row = row or connection.execute(_STORED.format("0", "tombstones"), (group_key,)).fetchone()
    if row is None:
        return None
    *own, mark, is_held = row
    policy = settings.of_group(*own)
    before = 0 if is_held else policy.erasable_before(now)
    above = commits_above(connection, group_key, policy)
    return Erasable(hidden_before(mark, policy, now), before, above, is_deleted)


def is_held(connection: sqlite3.Connection, group_key: int) -> bool:
    """Tell whether a legal hold covers all messages of a group."""
    return connection.execute("SELECT 1 FROM holds WHERE group_key = ?", (group_key,)).fetchone() is not None


def has_held_senders(connection: sqlite3.Connection) -> bool:
    """Tell whether a legal hold covers what any user has sent."""
    return connection.execute("SELECT 1 FROM holds WHERE user_id IS NOT NULL").fetchone() is not None


def changed(
    connection: sqlite3.Connection, old: PolicySettings, new: PolicySettings
) -> Iterator[tuple[int, GroupPolicy, GroupPolicy]]:
    """Yield each group whose policy differs between two settings of the server: key, old policy, new policy."""
    overridden = {*old.overrides, *new.overrides}
    for expiry, least in _occurring(connection):
        before, after = old.of_setting(expiry, least), new.of_setting(expiry, least)
        if before != after:
            keys = connection.execute(
                "SELECT group_key, group_id FROM groups WHERE message_expiry_seconds = ? AND min_lifetime_seconds = ?",
                (expiry, least),
            )
            yield from ((row[0], before, after) for row in keys.fetchall() if row[1] not in overridden)
    for group_id in sorted(overridden):
        row = connection.execute(
            "SELECT group_key, message_expiry_seconds, min_lifetime_seconds FROM groups WHERE group_id = ?",
            (group_id,),
        ).fetchone()
        if row:
            before, after = (each.of_group(group_id, row[1], row[2]) for each in (old, new))
            if before != after:
                yield row[0], before, after


def list_all(
    connection: sqlite3.Connection,
    settings: PolicySettings,
    now: int,
    covers: Callable[[GroupPolicy], bool] = lambda _: True,
) -> None:
    """Make temp.group_policies and temp.tombstone_policies: one row for each group, and for each deleted one.

    Columns: ``group_key``, ``lifetime``, ``expires_before``, ``erasable_before``, ``covered``. The first three values
    are those of GroupPolicy at the Unix second ``now``; ``erasable_before`` is 0 if a legal hold covers the group.
    ``covered``: what ``covers`` says of the policy.
    """

    def values(policy: GroupPolicy) -> tuple[int, int, int, bool]:
        return policy.lifetime, policy.expires_before(now), policy.erasable_before(now), covers(policy)

    for view in ("group_policies", "tombstone_policies"):
        connection.execute(f"DROP VIEW IF EXISTS temp.{view}")
    for table, key in (("setting_policies", "expiry, least"), ("override_policies", "group_id")):
        connection.execute(f"DROP TABLE IF EXISTS temp.{table}")
        connection.execute(
            f"CREATE TEMP TABLE {table} ({key}, lifetime, expires_before, erasable_before, covered,"
            f" PRIMARY KEY ({key})) WITHOUT ROWID"
        )
    connection.executemany(
        "INSERT INTO temp.setting_policies VALUES (?, ?, ?, ?, ?, ?)",
        [(*own, *values(settings.of_setting(*own))) for own in _occurring(connection)],
    )
    connection.executemany(
        "INSERT INTO temp.override_policies VALUES (?, ?, ?, ?, ?)",
        [(group_id, *values(policy)) for group_id, policy in settings.overrides.items()],
    )
    for view, table in (("group_policies", "groups"), ("tombstone_policies", "tombstones")):
        chosen = ", ".join(
            f"ifnull(override.{column}, setting.{column}) AS {column}"
            for column in ("lifetime", "expires_before", "covered")
        )
        connection.execute(
            f"CREATE TEMP VIEW {view} AS SELECT stored.group_key, {chosen},"
            " iif(stored.group_key IN (SELECT group_key FROM main.holds WHERE group_key IS NOT NULL), 0,"
            " ifnull(override.erasable_before, setting.erasable_before)) AS erasable_before"
            f" FROM main.{table} AS stored JOIN temp.setting_policies AS setting"
            " ON expiry = stored.message_expiry_seconds AND least = stored.min_lifetime_seconds"
            " LEFT JOIN temp.override_policies AS override ON override.group_id = stored.group_id"
        )


def in_use(connection: sqlite3.Connection, settings: PolicySettings) -> set[GroupPolicy]:
    """Return the policies that groups have under the server's settings; without deleted groups."""
    query = "SELECT DISTINCT message_expiry_seconds, min_lifetime_seconds FROM groups"
    if settings.overrides:
        query += " WHERE hex(group_id) NOT IN (SELECT value FROM json_each(:overridden))"
    overridden = json.dumps([group_id.hex().upper() for group_id in settings.overrides])
    found = {settings.of_setting(*row) for row in connection.execute(query, {"overridden": overridden})}
    for group_id, policy in settings.overrides.items():
        if connection.execute("SELECT 1 FROM groups WHERE group_id = ?", (group_id,)).fetchone():
            found.add(policy)
    return found


def _occurring(connection: sqlite3.Connection) -> list[tuple[int, int]]:
    """Return the settings that groups have, deleted ones included: their expiry and their least lifetime."""
    return [
        (row[0], row[1])
        for row in connection.execute(
            "SELECT message_expiry_seconds, min_lifetime_seconds FROM groups"
            " UNION SELECT message_expiry_seconds, min_lifetime_seconds FROM tombstones"
        )
    ]
