"""Explains one message: whether it is hidden, by which rule and since when, and when it may be erased."""

import sqlite3
from dataclasses import asdict, dataclass

from conclave.retention import rules
from conclave.retention.rules import (
    DELETED_GROUP,
    ENDS_AT,
    EXPIRED,
    GOVERNED,
    LIVING_RULES,
    REDACTED,
    TIMED,
    Bounds,
    is_kept,
    may_erase,
    rule_name,
)

UNREAD_BY = (
    "joined_after < ?2 AND NOT EXISTS (SELECT 1 FROM timers WHERE timers.group_key = members.group_key"
    " AND sequence_num = ?2 AND timers.member_id = members.member_id)"
)
"""The SQL condition for members who can read the self-destructing message number ``?2`` and have not done so."""


@dataclass(frozen=True)
class MessageFacts:
    """The properties of a message that the rules use. ``created_at``: Unix seconds."""

    created_at: int
    sender_id: bytes
    is_commit: bool


@dataclass(frozen=True)
class Timer:
    """The timers of a message that self-destructs ``seconds`` after it was read. Times are Unix seconds.

    ``readers``: how many current members were members when it was sent. ``unread``: how many of them have not read it.
    ``redacted``: for how many the timer has ended. ``next_end``: the earliest end of a running timer, or None.
    ``ends_at``: the first second at which no reader sees it, by the timers so far.
    """

    seconds: int
    readers: int
    unread: int
    redacted: int
    next_end: int | None
    ends_at: int


@dataclass(frozen=True)
class Fate:
    """When a message is hidden and erased. Times are Unix seconds.

    ``is_hidden``: it is served to no reader. ``rule``: the rule by which it is due, or will become due by time; ""
    if only members' actions can make it due, or it never becomes due. ``by_mark``: it is past a mark, redacted for
    every reader, or its group has a tombstone, so any run erases it. ``hidden_at``: the first second at which its
    age or its timers hide it; None: never, or another rule hid it before. ``is_next``: the next run that covers the
    group erases it. ``erasable_at``: the first second at which it is both due and old enough; None if that does not
    depend on time alone. ``withheld_until``: the first second at which it is old enough. ``holds``: the ids of the
    legal holds on it. ``is_kept_commit``: it does not expire by age until all members have fetched it.
    ``waits_for_members``: it becomes due once all have fetched it. ``timer``: None unless it is self-destructing.
    """

    is_hidden: bool
    rule: str
    by_mark: bool
    hidden_at: int | None
    is_next: bool
    erasable_at: int | None
    withheld_until: int
    holds: tuple[int, ...]
    is_kept_commit: bool
    waits_for_members: bool
    timer: Timer | None = None


def fate_of(connection: sqlite3.Connection, now: int, group_key: int, number: int, facts: MessageFacts) -> Fate:
    """Return the fate of a stored message at the Unix second ``now``. Raises ValueError if the group is gone."""
    policy = rules.find_policy(connection, group_key)
    values = {"now": now, "group_key": group_key, "sequence_num": number, **asdict(facts)}
    row = connection.execute(_RULES, values).fetchone()
    if policy is None or row is None:
        raise ValueError(f"group {group_key} is gone")
    rule, by_mark = row["rule"] or "", row["rule"] is not None and row["rule"] == row["marked"]
    is_kept_commit, is_deleted = bool(row["is_kept"]), rule == DELETED_GROUP
    timer = None if is_deleted else _timer(connection, now, group_key, number)
    holds = _holds(connection, group_key, facts.sender_id)
    old_enough = facts.created_at + policy.min_lifetime
    ends_by_age = policy.age_limit > 0 and not is_kept_commit and not is_deleted
    ends = {EXPIRED: policy.expires_at(facts.created_at)} if ends_by_age and not by_mark else {}
    if timer and not by_mark:
        ends[REDACTED] = timer.ends_at
    first_rule = min(ends, key=lambda each: ends[each], default="")
    hidden_at = ends.get(first_rule)
    return Fate(
        is_hidden=row["hiding"] is not None,
        rule=rule or first_rule,
        by_mark=by_mark,
        hidden_at=hidden_at,
        is_next=bool(rule) and not holds and bool(row["is_old_enough"]),
        erasable_at=_erasable_at(rule, by_mark=by_mark, hidden_at=hidden_at, old_enough=old_enough),
        withheld_until=old_enough,
        holds=holds,
        is_kept_commit=is_kept_commit,
        waits_for_members=not rule and (policy.is_after_fetch or is_kept_commit),
        timer=timer,
    )


_MESSAGE = (
    "(SELECT :group_key AS group_key, :sequence_num AS sequence_num, :created_at AS created_at,"
    " :sender_id AS sender_id, :is_commit AS is_commit) AS messages"
)
_OLD_ENOUGH = may_erase(Bounds(unheld=""))
_RULES = f"""
WITH {GOVERNED}
SELECT {rule_name(LIVING_RULES, Bounds())} AS rule, {rule_name(LIVING_RULES, Bounds(gone="gone_below"))} AS hiding,
    {rule_name(LIVING_RULES, Bounds(gone="gone_below", cutoff="expired_before"))} AS marked,
    {is_kept()} AS is_kept, {_OLD_ENOUGH} AS is_old_enough FROM {_MESSAGE} JOIN governed_groups USING (group_key)
UNION ALL
SELECT '{DELETED_GROUP}', '{DELETED_GROUP}', '{DELETED_GROUP}', FALSE, {_OLD_ENOUGH}
    FROM {_MESSAGE} JOIN governed_tombstones USING (group_key)
"""
"""Selects the rules by which the next run erases a message, by which it is hidden now, and by which a mark hides it."""


def _timer(connection: sqlite3.Connection, now: int, group_key: int, number: int) -> Timer | None:
    values = {"group_key": group_key, "number": number, "now": now}
    row = connection.execute(
        f"SELECT seconds, {ENDS_AT} AS ends_at FROM {TIMED}"
        " WHERE self_destructing.group_key = :group_key AND sequence_num = :number",
        values,
    ).fetchone()
    if row is None:
        return None
    readers = connection.execute(
        "SELECT count(*), ifnull(sum(redact_at IS NULL), 0), ifnull(sum(redact_at <= :now), 0),"
        " min(iif(redact_at > :now, redact_at, NULL)) FROM members LEFT JOIN timers ON"
        " timers.group_key = members.group_key AND sequence_num = :number AND timers.member_id = members.member_id"
        " WHERE members.group_key = :group_key AND joined_after < :number",
        values,
    ).fetchone()
    return Timer(row["seconds"], readers[0], readers[1], readers[2], readers[3], row["ends_at"])


def _erasable_at(rule: str, *, by_mark: bool, hidden_at: int | None, old_enough: int) -> int | None:
    if rule and (by_mark or rule != EXPIRED or hidden_at is None):
        return old_enough  # it is due already, for another reason than its age
    return None if hidden_at is None else max(hidden_at, old_enough)


def _holds(connection: sqlite3.Connection, group_key: int, sender_id: bytes) -> tuple[int, ...]:
    rows = connection.execute(
        "SELECT hold_id FROM holds WHERE group_key = ? OR user_id = ? ORDER BY hold_id", (group_key, sender_id)
    )
    return tuple(row[0] for row in rows)
