"""Computes which messages of a group are hidden, and which may be erased, at one moment.

Messages that the policy hides by age may be erased from that second on, if they are old enough and under no legal hold.
Messages that the marks of a group hide (``marks.py``) stay hidden, and may be erased under the same conditions, even
after the policy changes.
"""

import sqlite3
from typing import NamedTuple

from conclave.retention.policy import FOREVER
from conclave.retention.rules import COMMITS_ABOVE, GOVERNED


class ErasureLimits(NamedTuple):
    """Which messages of a group are hidden, and which of these may be erased: see ``rules.Bounds``.

    ``gone``: messages up to this number, inclusive, are never served again. ``cutoff``: messages created before this
    Unix second, exclusive, are hidden by age or by the mark, except commits with numbers above ``commits_above``.
    ``erasable_before``: messages created before this Unix second, exclusive, are old enough; 0: nothing may be erased.
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
    """Return the number above which commits of a group do not expire by age; FOREVER: all commits expire."""
    row = connection.execute(f"SELECT {COMMITS_ABOVE} FROM groups WHERE group_key = ?", (group_key,)).fetchone()
    return int(row[0]) if row else FOREVER


def keeps_commit(connection: sqlite3.Connection, group_key: int, number: int) -> bool:
    """Return whether the commit with this number is exempt from expiry by age."""
    return number > commits_above(connection, group_key)


def limits_of(connection: sqlite3.Connection, group_key: int, now: int) -> ErasureLimits | None:
    """Return the limits of a living or deleted group at the Unix second ``now``; None if no row is left of it."""
    row = connection.execute(_LIMITS, {"group_key": group_key, "now": now}).fetchone()
    return ErasureLimits(row[0], row[1], row[2], row[3], bool(row[4])) if row else None
