"""The policy in force, as the rows of groups and tombstones have it: the columns, and what SQL takes from them."""

import sqlite3
from functools import lru_cache

from conclave.retention.policy import FOREVER, GroupPolicy, Source

COLUMNS = "effective_expiry, least_lifetime, hold_limit, keeps_commits, erases, policy_source"
"""The columns in which the tables ``groups`` and ``tombstones`` have the policy in force."""


@lru_cache(maxsize=4096)  # each page asks; admins choose the values
def of_row(
    lifetime: int, min_lifetime: int, hold_limit: int, keeps_commits: int, erases: int, source: str
) -> GroupPolicy:
    """Return the policy that a row has in COLUMNS. One that is not written yet keeps everything."""
    return GroupPolicy(
        lifetime,
        min_lifetime,
        hold_limit,
        keeps_commits=bool(keeps_commits),
        erases=bool(erases),
        source=Source(source) if source else Source.NONE,
    )


def find(connection: sqlite3.Connection, group_key: int) -> GroupPolicy | None:
    """Return the policy of a stored group, also of a deleted one that has a tombstone; None if it is gone."""
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
