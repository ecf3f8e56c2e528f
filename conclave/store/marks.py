"""The marks of a group: what they cover is never served again, even after the policy changes.

last_seq        the group's counter: the last number that it gave to a message
floor_seq       messages up to this number (inclusive) were fetched by all who were members at that time
gone_below      messages up to this number (inclusive) are never served again
expired_before  messages created before this Unix second (exclusive) are never served again
commits_below   commits up to this number (inclusive) were fetched by all who were members at that time

A mark only rises. The one exception is ``floor_seq`` when a group enters delete-after-fetch. The rules are those of the
retention contract, section 1. ``commits_below`` is there because of that exception: the setting ``retain_commits``
keeps commits above it from expiring by age, and one that has expired must not come back.
"""

import sqlite3

from conclave.retention.policy import GroupPolicy
from conclave.retention.resolve import PolicySettings
from conclave.store import policies

_LEAST_WATERMARK = "(SELECT min(watermark) FROM members WHERE members.group_key = groups.group_key)"


def advance_floor(connection: sqlite3.Connection, group_key: int) -> None:
    """Raise the floor, and ``commits_below``, to the least watermark of the current members.

    Called in the transaction of each leave (after the member is removed), join (before the member is added) and policy
    change.
    """
    connection.execute(
        f"UPDATE groups SET floor_seq = max(floor_seq, ifnull({_LEAST_WATERMARK}, 0)),"
        f" commits_below = max(commits_below, ifnull({_LEAST_WATERMARK}, 0)) WHERE group_key = ?",
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
    if new.keeps_commits and not old.keeps_commits:
        _let_go_of_commits(connection, group_key)
    if old.is_after_fetch and not new.is_after_fetch:
        connection.execute(
            "UPDATE groups SET gone_below = max(gone_below, floor_seq) WHERE group_key = ?", (group_key,)
        )
    elif new.is_after_fetch and not old.is_after_fetch:
        # The floor of former members must not count for those who are members now.
        connection.execute(
            f"UPDATE groups SET floor_seq = max(gone_below, ifnull({_LEAST_WATERMARK}, 0)) WHERE group_key = ?",
            (group_key,),
        )


def _let_go_of_commits(connection: sqlite3.Connection, group_key: int) -> None:
    """Have the commits that are hidden by ``expired_before`` stay hidden, although commits are kept from now on.

    In the archive a part counts as a whole: commits that lie in it with hidden messages will expire by age too.
    """
    connection.execute(
        "UPDATE groups SET commits_below = max(commits_below, ifnull((SELECT max(sequence_num) FROM messages"
        " WHERE messages.group_key = groups.group_key AND created_at < expired_before), 0), ifnull((SELECT"
        " max(last_seq) FROM archive_parts WHERE archive_parts.group_key = groups.group_key"
        " AND oldest < expired_before), 0)) WHERE group_key = ?",
        (group_key,),
    )


def settle_all(connection: sqlite3.Connection, old: PolicySettings, new: PolicySettings, at: int) -> None:
    """Settle every group whose policy differs between the server's settings ``old`` and ``new``.

    ``at``: the last Unix second at which ``old`` was in force.
    """
    for group_key, before, after in policies.changed(connection, old, new):
        settle(connection, group_key, before, after, at)
