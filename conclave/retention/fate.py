"""The fate of one message: whether it is hidden, by what, from when on, and when it may be erased."""

import sqlite3
from dataclasses import asdict, dataclass

from conclave.retention import policy_row
from conclave.retention.rules import (
    DELETED_GROUP,
    ENDS_AT,
    EXPIRED,
    GOVERNED,
    OF_LIVING,
    REDACTED,
    TIMED,
    Bounds,
    is_kept,
    may_go,
    named,
)

UNREAD_BY = (
    "joined_after < ?2 AND NOT EXISTS (SELECT 1 FROM timers WHERE timers.group_key = members.group_key"
    " AND sequence_num = ?2 AND timers.member_id = members.member_id)"
)
"""Admits the members who could read the self-destructing message with the number ``?2``, and have not."""


@dataclass(frozen=True)
class Sent:
    """What is known of a message but its body. ``created_at``: Unix seconds."""

    created_at: int
    sender_id: bytes
    is_commit: bool


@dataclass(frozen=True)
class Timer:
    """A message that destroys itself ``seconds`` after it was read. Times are Unix seconds.

    ``readers``: the members who were members when it was sent. ``unread``: those of them who have not read it.
    ``redacted``: those for whom its time is over. ``next_end``: when the next one's is; None: no timer runs.
    ``ends_at``: the first second at which no reader sees it any more, as things stand.
    """

    seconds: int
    readers: int
    unread: int
    redacted: int
    next_end: int | None
    ends_at: int


@dataclass(frozen=True)
class Fate:
    """What becomes of a message. Times are Unix seconds.

    ``is_hidden``: no reader gets it any more. ``rule``: the one by which it is due, or will be by time; "" if only what
    members do, or nothing, can end it. ``by_mark``: it is past a mark, redacted for every reader, or under a tombstone,
    so any run erases it. ``hidden_at``: the first second at which its age or its timers will hide it, or have; None:
    never, or something else has before. ``goes``: the next run that covers the group erases it. ``erasable_at``: the
    first second at which it is both due and old enough; None if that is not a matter of time. ``withheld_until``: the
    first second at which it is old enough. ``holds``: the legal holds that keep it. ``is_kept_commit``: it does not
    expire by age until all members have fetched it. ``waits_for_members``: what it needs to go is that all have fetched
    it. ``timer``: what is known of one that destroys itself; None: it does not.
    """

    is_hidden: bool
    rule: str
    by_mark: bool
    hidden_at: int | None
    goes: bool
    erasable_at: int | None
    withheld_until: int
    holds: tuple[int, ...]
    is_kept_commit: bool
    waits_for_members: bool
    timer: Timer | None = None


def fate_of(connection: sqlite3.Connection, now: int, group_key: int, number: int, sent: Sent) -> Fate:
    """Return the fate of a stored message, as of the Unix second ``now``."""
    policy = policy_row.find(connection, group_key)
    values = {"now": now, "group_key": group_key, "sequence_num": number, **asdict(sent)}
    found = connection.execute(_RULES, values).fetchone()
    if policy is None or found is None:
        raise ValueError(f"group {group_key} is gone")
    rule, by_mark = found["rule"] or "", found["rule"] is not None and found["rule"] == found["marked"]
    is_kept_commit, is_deleted = bool(found["is_kept"]), rule == DELETED_GROUP
    timer = None if is_deleted else _timer(connection, now, group_key, number)
    holds = _holds(connection, group_key, sent.sender_id)
    old_enough = sent.created_at + policy.min_lifetime
    ends_by_age = policy.age_limit > 0 and not is_kept_commit and not is_deleted
    ends = {EXPIRED: policy.expires_at(sent.created_at)} if ends_by_age and not by_mark else {}
    if timer and not by_mark:
        ends[REDACTED] = timer.ends_at
    ending = min(ends, key=lambda each: ends[each], default="")
    hidden_at = ends.get(ending)
    return Fate(
        is_hidden=found["hiding"] is not None,
        rule=rule or ending,
        by_mark=by_mark,
        hidden_at=hidden_at,
        goes=bool(rule) and not holds and bool(found["is_old_enough"]),
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
_OLD_ENOUGH = may_go(Bounds(unheld=""))
_RULES = f"""
WITH {GOVERNED}
SELECT {named(OF_LIVING, Bounds())} AS rule, {named(OF_LIVING, Bounds(gone="gone_below"))} AS hiding,
    {named(OF_LIVING, Bounds(gone="gone_below", cutoff="expired_before"))} AS marked,
    {is_kept()} AS is_kept, {_OLD_ENOUGH} AS is_old_enough FROM {_MESSAGE} JOIN governed_groups USING (group_key)
UNION ALL
SELECT '{DELETED_GROUP}', '{DELETED_GROUP}', '{DELETED_GROUP}', FALSE, {_OLD_ENOUGH}
    FROM {_MESSAGE} JOIN governed_tombstones USING (group_key)
"""
"""By which rule the next run erases a message, by which it is hidden now, and by which of the stored marks; or null."""


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
        return old_enough  # something other than its age has made it due already
    return None if hidden_at is None else max(hidden_at, old_enough)


def _holds(connection: sqlite3.Connection, group_key: int, sender_id: bytes) -> tuple[int, ...]:
    rows = connection.execute(
        "SELECT hold_id FROM holds WHERE group_key = ? OR user_id = ? ORDER BY hold_id", (group_key, sender_id)
    )
    return tuple(row[0] for row in rows)
