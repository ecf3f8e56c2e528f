"""The marks of a group: what makes "never served again" exact whatever the policy becomes.

last_seq        the group's counter
floor_seq       everything at or below was fetched by all members of the time
gone_below      at or below: never served again, whatever the policy
expired_before  created before: never served again

Each only rises, but for ``floor_seq`` on entering delete-after-fetch. The rules are those of the
retention contract, section 1.
"""

import sqlite3

from conclave.retention.policy import GroupPolicy, PolicySettings
from conclave.store import policies

_LEAST_WATERMARK = "(SELECT min(watermark) FROM members WHERE members.group_key = groups.group_key)"


def advance_floor(connection: sqlite3.Connection, group_key: int) -> None:
    """Raise the floor to the least watermark of the current members.

    Called in the transaction of every leave (after the leaver is gone), join (before the joiner is added)
    and policy change.
    """
    connection.execute(
        f"UPDATE groups SET floor_seq = max(floor_seq, ifnull({_LEAST_WATERMARK}, 0)) WHERE group_key = ?",
        (group_key,),
    )


def settle(connection: sqlite3.Connection, group_key: int, old: GroupPolicy, new: GroupPolicy, at: int) -> None:
    """Fix what the policy ``old`` of a group has hidden by the second ``at``, before ``new`` applies.

    ``at``: the last Unix second at which ``old`` was in force.
    """
    advance_floor(connection, group_key)
    if old == new:
        return
    connection.execute(
        "UPDATE groups SET expired_before = max(expired_before, ?) WHERE group_key = ?",
        (old.expires_before(at), group_key),
    )
    if old.is_after_fetch:
        connection.execute(
            "UPDATE groups SET gone_below = max(gone_below, floor_seq) WHERE group_key = ?", (group_key,)
        )
    elif new.is_after_fetch:
        # What the floor remembers of members long gone must not count for those who are here now.
        connection.execute(
            f"UPDATE groups SET floor_seq = max(gone_below, ifnull({_LEAST_WATERMARK}, 0)) WHERE group_key = ?",
            (group_key,),
        )


def settle_all(connection: sqlite3.Connection, old: PolicySettings, new: PolicySettings, at: int) -> None:
    """Settle every group whose policy differs between two configurations of the server."""
    for group_key, before, after in policies.changed(connection, old, new):
        settle(connection, group_key, before, after, at)
