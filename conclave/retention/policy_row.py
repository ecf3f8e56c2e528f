"""Reads the policy in force from the rows of groups and tombstones, in Python and in SQL."""

import sqlite3
from functools import lru_cache

from conclave.retention.policy import FOREVER, GroupPolicy, Source

COLUMNS = "effective_expiry, least_lifetime, hold_limit, keeps_commits, erases, policy_source"
"""The columns of the tables ``groups`` and ``tombstones`` that store the policy in force."""


@lru_cache(maxsize=4096)  # used by each page; bounded, since admins choose the values
def of_row(
    lifetime: int, min_lifetime: int, hold_limit: int, keeps_commits: int, erases: int, source: str
) -> GroupPolicy:
    """Return the policy of a row with COLUMNS. A row without a policy keeps everything."""
    return GroupPolicy(
        lifetime,
        min_lifetime,
        hold_limit,
        keeps_commits=bool(keeps_commits),
        erases=bool(erases),
        source=Source(source) if source else Source.NONE,
    )


def find(connection: sqlite3.Connection, group_key: int) -> GroupPolicy | None:
    """Return the policy of a group, or of a deleted group that has a tombstone; None if there is no row."""
    for table in ("groups", "tombstones"):
        row = connection.execute(f"SELECT {COLUMNS} FROM {table} WHERE group_key = ?", (group_key,)).fetchone()
        if row:
            return of_row(*row)
    return None


_AGE_LIMIT = "iif(effective_expiry = 0, hold_limit, effective_expiry)"

EXPIRES_BEFORE = f"iif({_AGE_LIMIT} > 0, max(0, :now - {_AGE_LIMIT}), 0)"
"""The SQL expression for ``GroupPolicy.expires_before`` of the second ``:now``, over COLUMNS."""

OLD_ENOUGH_BEFORE = (
    f"CASE WHEN NOT erases THEN 0 WHEN least_lifetime = 0 THEN {FOREVER} ELSE max(0, :now - least_lifetime + 1) END"
)
"""The SQL expression for ``GroupPolicy.erasable_before`` of the second ``:now``, over COLUMNS."""
