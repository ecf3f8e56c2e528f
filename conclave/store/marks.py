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


def foresee_gone(connection: sqlite3.Connection, group_key: int, old: GroupPolicy, new: GroupPolicy) -> int:
    """Return up to which number, inclusive, nothing is served once ``new`` follows ``old`` and a run has passed."""
    gone_below, floor, least = connection.execute(
        f"SELECT gone_below, floor_seq, ifnull({_LEAST_WATERMARK}, 0) FROM groups WHERE group_key = ?", (group_key,)
    ).fetchone()
    if old.is_after_fetch == new.is_after_fetch:
        return int(gone_below)
    return int(max(gone_below, least) if new.is_after_fetch else max(gone_below, floor, least))


def settle(connection: sqlite3.Connection, group_key: int, old: GroupPolicy, new: GroupPolicy, at: int) -> None:
    """Keep hidden what the policy ``old`` of a group has hidden, before ``new`` applies.

    ``at``: the last Unix second at which ``old`` was in force.
    """
    advance_floor(connection, group_key)
    if old.hides_as(new):
        return
    hide_before(connection, group_key, old.expires_before(at))
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


def hide_before(connection: sqlite3.Connection, group_key: int, before: int) -> None:
    """Hide the messages of a group that were created before the Unix second ``before``, for ever.

    But for commits that the setting ``retain_commits`` keeps, for as long as it does. ``before``
    must not lie in the future.
    """
    connection.execute(
        "UPDATE groups SET expired_before = max(expired_before, ?) WHERE group_key = ?", (before, group_key)
    )


def end_timed(connection: sqlite3.Connection, before: int) -> None:
    """Start no more timers of self-destructing messages that were created before the Unix second ``before``, exclusive.

    Whoever has not read them may never see them. Timers that run go on.
    """
    connection.execute(
        "UPDATE self_destructing SET ended = 1 WHERE NOT ended AND (SELECT created_at FROM messages WHERE"
        " messages.group_key = self_destructing.group_key"
        " AND messages.sequence_num = self_destructing.sequence_num) < ?",
        (before,),
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
