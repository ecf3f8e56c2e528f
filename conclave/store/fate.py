"""The fate of one message: whether it is hidden, by what, from when on, and when it may be erased."""

import sqlite3
from dataclasses import dataclass

from conclave.retention.policy import GroupPolicy
from conclave.retention.resolve import PolicySettings
from conclave.store import policies, visibility

EXPIRED, FETCHED, REDACTED = "expired", "fetched", "redacted"
DELETED_GROUP, DELETED_ACCOUNT = "deleted_group", "deleted_account"
"""The rules by which messages go, as reports name them."""


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
    ``ends_at``: the first second at which nobody sees it any more, as things stand.
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

    ``is_hidden``: nobody gets it any more. ``rule``: the one by which it is due, or will be by time; "" if only what
    members do, or nothing, can end it. ``by_mark``: it is past a mark, redacted for everybody, or under a tombstone, so
    any run erases it. ``hidden_at``: the first second at which its age or its timers will hide it, or have; None:
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


@dataclass(frozen=True)
class _Group:
    """The marks that decide, as a run leaves them: ``gone`` is what the next run raises ``gone_below`` to."""

    is_deleted: bool
    gone_below: int
    gone: int
    expired_before: int


def fate_of(
    connection: sqlite3.Connection, settings: PolicySettings, now: int, group_key: int, number: int, sent: Sent
) -> Fate:
    """Return the fate of a stored message, as of the Unix second ``now``."""
    policy = policies.find(connection, group_key, settings)
    erasable = policies.erasable(connection, group_key, settings, now)
    if policy is None or erasable is None:
        raise ValueError(f"group {group_key} is gone")
    group = _marks(connection, group_key, policy)
    is_kept = sent.is_commit and number > erasable.commits_above and not group.is_deleted
    is_aged = sent.created_at < erasable.expired_before and not is_kept
    by_account = not sent.is_commit and _is_deleted_account(connection, sent.sender_id)
    timer = None if group.is_deleted else _timer(connection, settings, now, group_key, number)
    is_redacted = timer is not None and timer.ends_at <= now
    rule, by_mark = "", False
    if group.is_deleted:
        rule, by_mark = DELETED_GROUP, True
    elif number <= group.gone:
        rule, by_mark = FETCHED, number <= group.gone_below
    elif is_aged:
        rule, by_mark = EXPIRED, sent.created_at < group.expired_before
    elif is_redacted:
        rule, by_mark = REDACTED, True
    elif by_account:
        rule, by_mark = DELETED_ACCOUNT, True
    is_hidden = group.is_deleted or number <= group.gone_below or is_aged or by_account or is_redacted
    holds = _holds(connection, group_key, sent.sender_id)
    old_enough = sent.created_at + policy.min_lifetime
    ends_by_age = policy.age_limit > 0 and not is_kept and not group.is_deleted
    ends = {EXPIRED: policy.expires_at(sent.created_at)} if ends_by_age and not by_mark else {}
    if timer and not by_mark:
        ends[REDACTED] = timer.ends_at
    ending = min(ends, key=lambda each: ends[each], default="")
    hidden_at = ends.get(ending)
    return Fate(
        is_hidden=is_hidden,
        rule=rule or ending,
        by_mark=by_mark,
        hidden_at=hidden_at,
        goes=bool(rule) and not holds and sent.created_at < erasable.before,
        erasable_at=_erasable_at(rule, by_mark=by_mark, hidden_at=hidden_at, old_enough=old_enough),
        withheld_until=old_enough,
        holds=holds,
        is_kept_commit=is_kept,
        waits_for_members=not rule and (policy.is_after_fetch or is_kept),
        timer=timer,
    )


def _timer(
    connection: sqlite3.Connection, settings: PolicySettings, now: int, group_key: int, number: int
) -> Timer | None:
    values = {"group_key": group_key, "number": number, "now": now, "max_age": settings.self_destruct_max_age}
    row = connection.execute(
        f"SELECT seconds, {visibility.ENDS_AT} AS ends_at FROM {visibility.TIMED}"
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


def _marks(connection: sqlite3.Connection, group_key: int, policy: GroupPolicy) -> _Group:
    row = connection.execute(
        "SELECT gone_below, floor_seq, expired_before,"
        " (SELECT min(watermark) FROM members WHERE members.group_key = groups.group_key) FROM groups"
        " WHERE group_key = ?",
        (group_key,),
    ).fetchone()
    if row is None:
        return _Group(is_deleted=True, gone_below=0, gone=0, expired_before=0)
    gone_below, floor_seq, expired_before, least = row
    gone = max(gone_below, floor_seq, least or 0) if policy.is_after_fetch else gone_below
    return _Group(is_deleted=False, gone_below=gone_below, gone=gone, expired_before=expired_before)


def _is_deleted_account(connection: sqlite3.Connection, user_id: bytes) -> bool:
    return connection.execute("SELECT 1 FROM user_tombstones WHERE user_id = ?", (user_id,)).fetchone() is not None


def _holds(connection: sqlite3.Connection, group_key: int, sender_id: bytes) -> tuple[int, ...]:
    rows = connection.execute(
        "SELECT hold_id FROM holds WHERE group_key = ? OR user_id = ? ORDER BY hold_id", (group_key, sender_id)
    )
    return tuple(row[0] for row in rows)
