"""The effective policy of a group: when its messages are hidden, and when they may be erased.

The one place that says so. Reads, marks, both engines of cleanup, moves to the archive and the archive itself ask
here. Whatever is to set the policy of a single group, or to delay what it erases, belongs here and nowhere else.

What a policy hides by age may be erased from that second on. What the marks of a group hide (``marks.py``) stays
hidden, and may be erased, whatever the policy becomes.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Protocol

from conclave.retention.policy import GroupPolicy, PolicySettings


class Governed(Protocol):
    """What of a group decides on its policy."""

    @property
    def message_expiry_seconds(self) -> int:
        """The group's own setting."""

    @property
    def expired_before(self) -> int:
        """The mark: created before, never served again. Unix seconds, exclusive."""


def of_group(group: Governed, settings: PolicySettings) -> GroupPolicy:
    """Return the policy of a group under the settings of the server."""
    return settings.of_group(group.message_expiry_seconds)


def find(connection: sqlite3.Connection, group_key: int, settings: PolicySettings) -> tuple[GroupPolicy, int] | None:
    """Return the policy of a stored group and its mark ``expired_before``; None if it is gone."""
    row = connection.execute(
        "SELECT message_expiry_seconds, expired_before FROM groups WHERE group_key = ?", (group_key,)
    ).fetchone()
    return (settings.of_group(row["message_expiry_seconds"]), row["expired_before"]) if row else None


def hidden_before(group: Governed, settings: PolicySettings, now: int) -> int:
    """Return the Unix second before which a group's messages are hidden at ``now``: by age, or by its mark."""
    return max(group.expired_before, of_group(group, settings).expires_before(now))


def by_setting(settings: PolicySettings, occurring: Iterable[int]) -> dict[int, GroupPolicy]:
    """Return the policy of the groups that have each of the ``occurring`` settings."""
    return {setting: settings.of_group(setting) for setting in occurring}


def changed(
    connection: sqlite3.Connection, old: PolicySettings, new: PolicySettings
) -> Iterator[tuple[int, GroupPolicy, GroupPolicy]]:
    """Yield each group whose policy differs between two settings of the server: its key, the former, the new one."""
    for setting in _occurring(connection):
        before, after = old.of_group(setting), new.of_group(setting)
        if before != after:
            keys = connection.execute("SELECT group_key FROM groups WHERE message_expiry_seconds = ?", (setting,))
            yield from ((group_key, before, after) for (group_key,) in keys.fetchall())


def list_all(connection: sqlite3.Connection, settings: PolicySettings, now: int) -> None:
    """Make temp.group_policies, a row a group: ``group_key``, ``lifetime``, ``expires_before``.

    The latter are as in GroupPolicy, at the Unix second ``now``.
    """
    connection.execute("DROP VIEW IF EXISTS temp.group_policies")
    connection.execute("DROP TABLE IF EXISTS temp.setting_policies")
    connection.execute(
        "CREATE TEMP TABLE setting_policies (message_expiry_seconds INTEGER PRIMARY KEY, lifetime, expires_before)"
    )
    connection.executemany(
        "INSERT INTO temp.setting_policies VALUES (?, ?, ?)",
        [
            (setting, policy.lifetime, policy.expires_before(now))
            for setting, policy in by_setting(settings, _occurring(connection)).items()
        ],
    )
    connection.execute(
        "CREATE TEMP VIEW group_policies AS SELECT group_key, lifetime, expires_before"
        " FROM main.groups JOIN temp.setting_policies USING (message_expiry_seconds)"
    )


def _occurring(connection: sqlite3.Connection) -> list[int]:
    return [row[0] for row in connection.execute("SELECT DISTINCT message_expiry_seconds FROM groups")]
