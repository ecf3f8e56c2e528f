"""The marks of a group: what they cover is never served again, even after the policy changes.

last_seq        the group's counter: the last number that it gave to a message
floor_seq       messages up to this number (inclusive) were fetched by all who were members at that time
gone_below      messages up to this number (inclusive) are never served again
expired_before  messages created before this Unix second (exclusive) are never served again

A mark only rises. The one exception is ``floor_seq`` when a group enters delete-after-fetch. The rules are those of the
retention contract, section 1.
"""

import sqlite3

from conclave.retention.policy import GroupPolicy, PolicySettings
from conclave.store import policies

_LEAST_WATERMARK = "(SELECT min(watermark) FROM members WHERE members.group_key = groups.group_key)"


def advance_floor(connection: sqlite3.Connection, group_key: int) -> None:
    """Raise the floor to the least watermark of the current members.

    Called in the transaction of each leave (after the member is removed), join (before the member is added) and policy
    change.
    """
    connection.execute(
        f"UPDATE groups SET floor_seq = max(floor_seq, ifnull({_LEAST_WATERMARK}, 0)) WHERE group_key = ?",
        (group_key,),
    )


def settle(connection: sqlite3.Connection, group_key: int, old: GroupPolicy, new: GroupPolicy, at: int) -> None:
    """Keep hidden what the policy ``old`` of a group has hidden, before ``new`` applies.

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
        # The floor of former members must not count for those who are members now.
        connection.execute(
            f"UPDATE groups SET floor_seq = max(gone_below, ifnull({_LEAST_WATERMARK}, 0)) WHERE group_key = ?",
            (group_key,),
        )


def settle_all(connection: sqlite3.Connection, old: PolicySettings, new: PolicySettings, at: int) -> None:
    """Settle every group whose policy differs between the server's settings ``old`` and ``new``.

    ``at``: the last Unix second at which ``old`` was in force.
    """
    for group_key, before, after in policies.changed(connection, old, new):
        settle(connection, group_key, before, after, at)
