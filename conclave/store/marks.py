"""The marks of a group: what makes "never served again" exact whatever the policy becomes.

last_seq        the group's counter
floor_seq       everything at or below was fetched by all members of the time
gone_below      at or below: never served again, whatever the policy
expired_before  created before: never served again

Each only rises, but for ``floor_seq`` on entering delete-after-fetch. The rules are those of the
retention contract, section 1.
"""

import sqlite3

from conclave.retention.policy import AFTER_FETCH, PolicySettings, expiry_cutoff

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


def settle(connection: sqlite3.Connection, group_key: int, old: int, new: int, at: int) -> None:
    """Fix what the effective policy ``old`` has hidden by the second ``at``, before ``new`` applies.

    ``at``: the last Unix second at which ``old`` was in force.
    """
    advance_floor(connection, group_key)
    if old == new:
        return
    connection.execute(
        "UPDATE groups SET expired_before = max(expired_before, ?) WHERE group_key = ?",
        (expiry_cutoff(at, old), group_key),
    )
    if old == AFTER_FETCH:
        connection.execute(
            "UPDATE groups SET gone_below = max(gone_below, floor_seq) WHERE group_key = ?", (group_key,)
        )
    elif new == AFTER_FETCH:
        # What the floor remembers of members long gone must not count for those who are here now.
        connection.execute(
            f"UPDATE groups SET floor_seq = max(gone_below, ifnull({_LEAST_WATERMARK}, 0)) WHERE group_key = ?",
            (group_key,),
        )


def settle_all(connection: sqlite3.Connection, old: PolicySettings, new: PolicySettings, at: int) -> None:
    """Settle every group whose effective policy differs between two configurations of the server."""
    settings = connection.execute("SELECT DISTINCT message_expiry_seconds FROM groups").fetchall()
    for (setting,) in settings:
        before, after = old.effective(setting), new.effective(setting)
        if before == after:
            continue
        keys = connection.execute("SELECT group_key FROM groups WHERE message_expiry_seconds = ?", (setting,))
        for (group_key,) in keys.fetchall():
            settle(connection, group_key, before, after, at)
