"""What is hidden of a group at one moment, and may be erased then: by its policy, its marks and the legal holds.

What a policy hides by age may be erased from that second on, if it is old enough and no legal hold covers
it. What the marks of a group hide (``marks.py``) stays hidden, and may be erased under the same conditions, even after
the policy changes.
"""

import sqlite3
from typing import NamedTuple

from conclave.retention.policy import FOREVER
from conclave.retention.rules import COMMITS_ABOVE, GOVERNED


class Limits(NamedTuple):
    """Which messages of a group are hidden, and which may be erased then, at one moment: see ``rules.Bounds``.

    ``gone``: numbers up to it, inclusive, are never served again. ``cutoff``: those created before this Unix second,
    exclusive, are hidden by age or by the mark, but for commits with numbers greater than ``commits_above``.
    ``erasable_before``: those created before this Unix second, exclusive, are old enough; 0: none may be erased.
    ``is_deleted``: the group has a tombstone.
    """

    gone: int
    cutoff: int
    commits_above: int
    erasable_before: int
    is_deleted: bool


_LIMITS = f"""
WITH {GOVERNED}
SELECT gone_below, cutoff, commits_above, erasable_before, FALSE FROM governed_groups WHERE group_key = :group_key
UNION ALL
SELECT 0, 0, {FOREVER}, erasable_before, TRUE FROM governed_tombstones WHERE group_key = :group_key
"""


def commits_above(connection: sqlite3.Connection, group_key: int) -> int:
    """Return the number above which commits of a group do not expire by age; FOREVER if all do."""
    row = connection.execute(f"SELECT {COMMITS_ABOVE} FROM groups WHERE group_key = ?", (group_key,)).fetchone()
    return int(row[0]) if row else FOREVER


def keeps_commit(connection: sqlite3.Connection, group_key: int, number: int) -> bool:
    """Tell whether a commit with this number does not expire by age."""
    return number > commits_above(connection, group_key)


def limits_of(connection: sqlite3.Connection, group_key: int, now: int) -> Limits | None:
    """Return what may be erased of a group at the Unix second ``now``, a deleted one included; None if it is gone."""
    row = connection.execute(_LIMITS, {"group_key": group_key, "now": now}).fetchone()
    return Limits(row[0], row[1], row[2], row[3], bool(row[4])) if row else None
