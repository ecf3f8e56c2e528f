"""Writes the policies and marks of groups. A message that a mark hides is never served again, under any policy.

last_seq        the number of the group's last message
floor_seq       messages up to this number (inclusive) were fetched by all members of that time
gone_below      messages up to this number (inclusive) are never served again
expired_before  messages created before this Unix second (exclusive) are never served again
commits_below   commits up to this number (inclusive) were fetched by all members of that time

Marks only rise, except ``floor_seq`` when a group enters delete-after-fetch. The rules are those of the retention
contract, section 1. ``commits_below`` exists because of that exception: the setting ``retain_commits`` keeps commits
above it from expiring by age, and an expired commit must not reappear.
"""

import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

from conclave.retention.policy import GroupPolicy, expiry_cutoff
from conclave.retention.resolve import PolicySettings
from conclave.retention.rules import EXPIRES_BEFORE, LEAST_WATERMARK, MAX_AGE, POLICY_COLUMNS, policy_of_row


def advance_floor(connection: sqlite3.Connection, group_key: int) -> None:
    """Raise the floor, and ``commits_below``, to the least watermark of the current members.

    Called in the transaction of each leave (after the member is removed), join (before the member is added) and policy
    change.
    """
    connection.execute(
        f"UPDATE groups SET floor_seq = max(floor_seq, {LEAST_WATERMARK}),"
        f" commits_below = max(commits_below, {LEAST_WATERMARK}) WHERE group_key = ?",
        (group_key,),
    )


def settle(connection: sqlite3.Connection, settings: PolicySettings, at: int, group_key: int | None = None) -> None:
    """Write the policies under ``settings``, and the marks for messages that the former policies have hidden.

    ``at``: the last Unix second at which the former policies were in force. ``group_key``: only this group; None: all
    groups, and the maximum age of self-destructing messages. Deleted groups have no marks, only a policy.
    """
    if group_key is None:
        _settle_age(connection, settings, at)
    for each in _by_policy(connection, "groups", settings, group_key):
        connection.execute(_SETTLE.format(each.condition), {**each.values, "now": at})
    write(connection, settings, group_key)


def write(connection: sqlite3.Connection, settings: PolicySettings, group_key: int | None = None) -> None:
    """Write the policies under ``settings`` without changing marks.

    Use it if no former policy hid anything, or the marks are up to date: for new groups, new databases, and the ledger.
    """
    if group_key is None:
        connection.execute("UPDATE server_state SET self_destruct_max_age = ?", (settings.self_destruct_max_age,))
    for table in ("groups", "tombstones"):
        for each in _by_policy(connection, table, settings, group_key):
            connection.execute(f"UPDATE {table} SET {_ASSIGNMENTS} WHERE {each.condition} AND {_DIFFERS}", each.values)


def changed(connection: sqlite3.Connection, settings: PolicySettings) -> Iterator[tuple[int, GroupPolicy, GroupPolicy]]:
    """Yield each living group whose policy differs under ``settings``: its key, current policy and new policy."""
    for each in _by_policy(connection, "groups", settings, None):
        query = f"SELECT group_key, {POLICY_COLUMNS} FROM groups WHERE {each.condition} AND {_DIFFERS}"
        for key, *row in connection.execute(query, each.values).fetchall():
            if (former := policy_of_row(*row)) != each.policy:
                yield key, former, each.policy


def policies_under(connection: sqlite3.Connection, settings: PolicySettings) -> set[GroupPolicy]:
    """Return the policies that living groups would have under ``settings``."""
    return {each.policy for each in _by_policy(connection, "groups", settings, None)}


class _PolicyGroups(NamedTuple):
    """The groups with one policy under some settings: an SQL condition, and the values of its parameters."""

    condition: str
    policy: GroupPolicy
    values: dict[str, Any]


def _by_policy(
    connection: sqlite3.Connection, table: str, settings: PolicySettings, group_key: int | None
) -> list[_PolicyGroups]:
    """Partition the groups of a table, or a single one, by their policy under ``settings``."""
    only = "TRUE" if group_key is None else f"group_key = {group_key:d}"
    id_rows = connection.execute(f"SELECT group_id FROM {table} WHERE {only}") if group_key is not None else ()
    overridden = {
        row[0]: settings.overrides[group_id]
        for group_id in (
            settings.overrides if group_key is None else settings.overrides.keys() & {row[0] for row in id_rows}
        )
        for row in connection.execute(f"SELECT group_key FROM {table} WHERE group_id = ? AND {only}", (group_id,))
    }
    others = f"{only} AND group_key NOT IN ({', '.join(map(str, overridden))})"
    partition: list[tuple[str, GroupPolicy, dict[str, int]]]
    partition = [(f"group_key = {key:d}", policy, {}) for key, policy in overridden.items()]
    for expiry, least in connection.execute(
        f"SELECT DISTINCT message_expiry_seconds, min_lifetime_seconds FROM {table} WHERE {others}"
    ).fetchall():
        condition = f"message_expiry_seconds = :expiry AND min_lifetime_seconds = :least AND {others}"
        partition.append((condition, settings.of_setting(expiry, least), {"expiry": expiry, "least": least}))
    return [
        _PolicyGroups(condition, policy, {**parameters, **dict(zip(_COLUMNS, policy.row, strict=True))})
        for condition, policy, parameters in partition
    ]


_COLUMNS = POLICY_COLUMNS.split(", ")
_ASSIGNMENTS = ", ".join(f"{name} = :{name}" for name in _COLUMNS)
_DIFFERS = f"({POLICY_COLUMNS}) IS NOT ({', '.join(f':{name}' for name in _COLUMNS)})"

_AGE_MARK = f"max(expired_before, {EXPIRES_BEFORE})"

# Commits that are already hidden stay hidden when a group starts to keep commits. An archived part counts as a
# whole, so commits in a part with hidden messages expire by age too.
_HIDDEN_COMMITS = f"""iif(:keeps_commits > keeps_commits, max(
    ifnull((SELECT max(sequence_num) FROM messages
        WHERE messages.group_key = groups.group_key AND created_at < {_AGE_MARK}), 0),
    ifnull((SELECT max(last_seq) FROM archive_parts
        WHERE archive_parts.group_key = groups.group_key AND oldest < {_AGE_MARK}), 0)), 0)"""

# On entering delete-after-fetch, the floor of former members must not count for current members.
_SETTLE = f"""
UPDATE groups SET
    floor_seq = iif(:effective_expiry = 0 AND effective_expiry != 0, max(gone_below, {LEAST_WATERMARK}),
        max(floor_seq, {LEAST_WATERMARK})),
    gone_below = iif(:effective_expiry != 0 AND effective_expiry = 0, max(gone_below, floor_seq, {LEAST_WATERMARK}),
        gone_below),
    expired_before = {_AGE_MARK},
    commits_below = max(commits_below, {LEAST_WATERMARK}, {_HIDDEN_COMMITS})
WHERE {{}} AND (effective_expiry, hold_limit, keeps_commits) IS NOT (:effective_expiry, :hold_limit, :keeps_commits)
"""


def hide_before(connection: sqlite3.Connection, group_key: int, before: int) -> None:
    """Hide for ever the messages of a group that were created before the Unix second ``before``.

    Commits that the setting ``retain_commits`` keeps stay visible. ``before`` must not be in the future.
    """
    connection.execute(
        "UPDATE groups SET expired_before = max(expired_before, ?) WHERE group_key = ?", (before, group_key)
    )


def _settle_age(connection: sqlite3.Connection, settings: PolicySettings, at: int) -> None:
    """Keep messages hidden that were too old, at the Unix second ``at``, to be read for the first time.

    ``too_old_before`` is written to the ledger, so they stay hidden in a backup that is restored with a greater age.
    """
    row = connection.execute(f"SELECT {MAX_AGE}").fetchone()
    if row[0] not in (None, settings.self_destruct_max_age):
        before = expiry_cutoff(at, row[0])
        stop_new_timers(connection, before)
        connection.execute("UPDATE server_state SET too_old_before = max(too_old_before, ?)", (before,))


def stop_new_timers(connection: sqlite3.Connection, before: int) -> None:
    """Start no more timers for self-destructing messages created before the Unix second ``before``, exclusive.

    Members who have not read them will never see them. Running timers continue.
    """
    connection.execute(
        "UPDATE self_destructing SET ended = 1 WHERE NOT ended AND (SELECT created_at FROM messages WHERE"
        " messages.group_key = self_destructing.group_key"
        " AND messages.sequence_num = self_destructing.sequence_num) < ?",
        (before,),
    )
