"""Explains the retention of a group's messages, or of one message: whether the next run erases them, and why.

The results come from the deciding code: ``fate.py`` for a message, ``overdue.py`` for overdue erasures, ``reasons`` for
the source of a policy. Lists have at most LISTED entries, and the total. Writes nothing.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from conclave.retention.fate import UNREAD_BY, Fate, MessageFacts, fate_of
from conclave.retention.jobs import Scope
from conclave.retention.policy import GroupPolicy
from conclave.retention.resolve import PolicySettings, reasons
from conclave.retention.rules import POLICY_COLUMNS, policy_of_row
from conclave.store.resources import receipts, taken_back
from conclave.store.resources.audit import AuditAction
from conclave.store.resources.receipts import Receipt
from conclave.store.sender_index import SENT
from conclave.store.views import overdue

LISTED = 10
"""At most 10 members, holds and receipts are listed."""


@dataclass(frozen=True)
class Marks:
    """The marks of a group, see ``retention/marks.py``, and its border, see ``retention/stretches.py``."""

    last_seq: int = 0
    floor_seq: int = 0
    gone_below: int = 0
    expired_before: int = 0
    commits_below: int = 0
    archived_seq: int = 0


@dataclass(frozen=True)
class LaggingMember:
    """A member who has not fetched, or not read, the messages. Times are Unix seconds.

    ``fetched``: the watermark. The time of the fetch is not stored. ``last_used_at``: the last use of a session, for
    any request; None without sessions.
    """

    username: str
    user_id: str
    fetched: int
    last_used_at: int | None
    disabled: bool


@dataclass(frozen=True)
class CoveringHold:
    """A legal hold on the group, or on a user who may have sent messages here.

    ``has_sent``: for a hold on a user, whether the user has sent messages here; None if unknown.
    """

    hold_id: int
    covers: str
    name: str
    subject_id: str
    reason: str
    added_by: str
    added_at: int
    has_sent: bool | None


@dataclass(frozen=True)
class Decision:
    """The last audit entry that changed the policy of the group, or the server's settings."""

    at: int
    actor: str
    action: str


@dataclass(frozen=True)
class Job:
    """A job that erases messages of the group, and its interval in seconds."""

    name: str
    interval: int


@dataclass(frozen=True)
class ExplainedWithdrawal:
    """The withdrawal of a message. ``at``: Unix seconds. ``by``: the name of an account; "" if unknown.

    ``is_own``: whether the sender took it back; None if unknown, after a restore from the ledger.
    """

    at: int
    by: str
    is_own: bool | None


@dataclass(frozen=True)
class ExplainedMessage:
    """A message. Its fate is None unless it is stored and its row could be read.

    ``place``: hot, moving, copied, archived, gone, or "not sent yet". ``sender``: the name of the account; "" if it was
    deleted. ``part``: its archive part: class, span, and the times of its oldest and newest message. ``unreadable``:
    why the archive could not be read. ``receipts``: those that may include its erasure. ``waiting``: members who have
    not fetched it, if it is kept for them. ``unread``: members who have not read it, if it is self-destructing; their
    number is in the timer of its fate. ``taken_back``: its withdrawal, or None.
    """

    sequence_num: int
    place: str
    sent: MessageFacts | None = None
    sender: str = ""
    fate: Fate | None = None
    part: tuple[int, int, int, int] | None = None
    unreadable: str = ""
    receipts: tuple[Receipt, ...] = ()
    waiting: tuple[LaggingMember, ...] = ()
    waiting_in_all: int = 0
    unread: tuple[LaggingMember, ...] = ()
    taken_back: ExplainedWithdrawal | None = None


@dataclass(frozen=True)
class Explanation:
    """The retention of a group's messages, as of the Unix second ``now``.

    ``own_max`` and ``own_min``: the settings of its admins. ``decided``: None if unknown. ``jobs``: the jobs that erase
    expired messages. ``waiting``: members for whom messages are kept, ``waiting_in_all`` of them. ``overdue_since``:
    None if nothing is overdue. ``clock_fault``: the fault of the clock, because of which nothing is erased, or "".
    """

    group_id: str
    name: str
    deleted_at: int | None
    now: int
    lifetime: int
    min_lifetime: int
    hold_limit: int
    source: str
    reasons: list[str]
    own_max: int
    own_min: int
    decided: Decision | None
    marks: Marks
    holds: list[CoveringHold]
    holds_in_all: int
    waiting: tuple[LaggingMember, ...]
    waiting_in_all: int
    jobs: list[Job]
    overdue_since: int | None
    erases: bool
    clock_fault: str
    message: ExplainedMessage | None = None


ReadArchived = Callable[[int, int, Sequence[tuple[int, int]]], MessageFacts | None]
"""Reads a message from the archive: group key, number, and the partitions in which it may be. None: not found."""


class ArchiveReadError(Exception):
    """The archive cannot be read. The message has the reason."""


@dataclass(frozen=True)
class _Group:
    """A group, existing or deleted."""

    group_key: int
    group_id: bytes
    name: str
    deleted_at: int | None
    own_max: int
    own_min: int
    marks: Marks
    policy: GroupPolicy


def explain(
    connection: sqlite3.Connection,
    settings: PolicySettings,
    schedule: Sequence[tuple[Scope, int]],
    now: int,
    group_id: bytes,
    number: int | None = None,
    read_archived: ReadArchived | None = None,
    clock_fault: str = "",
) -> Explanation | None:
    """Explain a group at the Unix second ``now``, and optionally its message ``number``.

    ``schedule``: the jobs, and their intervals in seconds. ``read_archived``: reads the archive; without it, only the
    database is used. ``clock_fault``: the fault of the clock, "" if none. Returns None if no data of the group is left.
    """
    group = _find(connection, group_id)
    if group is None:
        return None
    policy = group.policy
    holds, holds_in_all = _holds(connection, group)
    keeps_messages = policy.is_after_fetch or policy.keeps_commits
    lagging, lagging_in_all = _waiting(connection, group, group.marks.last_seq) if keeps_messages else ((), 0)
    backlog = overdue.find(connection, now, group.group_key, schedule).get(group.group_key)
    message = None if number is None else _message(connection, now, group, number, read_archived)
    return Explanation(
        group_id=str(UUID(bytes=group_id)),
        name=group.name,
        deleted_at=group.deleted_at,
        now=now,
        lifetime=policy.lifetime,
        min_lifetime=policy.min_lifetime,
        hold_limit=policy.hold_limit,
        source=policy.source.value,
        reasons=reasons(settings, group_id, group.own_max, group.own_min),
        own_max=group.own_max,
        own_min=group.own_min,
        decided=_last_decision(connection, group_id),
        marks=group.marks,
        holds=holds,
        holds_in_all=holds_in_all,
        waiting=lagging,
        waiting_in_all=lagging_in_all,
        jobs=_jobs(policy, schedule, is_deleted=group.deleted_at is not None),
        overdue_since=backlog.since if backlog else None,
        erases=settings.enabled,
        clock_fault=clock_fault,
        message=_withheld_by_clock(message) if message and clock_fault else message,
    )


def _withheld_by_clock(message: ExplainedMessage) -> ExplainedMessage:
    """Return the message with the fate that the next run does not erase it, since the clock is wrong."""
    return replace(message, fate=replace(message.fate, is_next=False)) if message.fate else message


def _find(connection: sqlite3.Connection, group_id: bytes) -> _Group | None:
    row = connection.execute(
        f"SELECT {POLICY_COLUMNS}, group_key, group_name, message_expiry_seconds, min_lifetime_seconds, last_seq,"
        " floor_seq, gone_below, expired_before, commits_below, archived_seq FROM groups WHERE group_id = ?",
        (group_id,),
    ).fetchone()
    if row:
        return _Group(
            row[6], group_id, row[7], None, row[8], row[9], Marks(*tuple(row)[10:]), policy_of_row(*tuple(row)[:6])
        )
    row = connection.execute(
        f"SELECT {POLICY_COLUMNS}, group_key, created_at, message_expiry_seconds, min_lifetime_seconds FROM tombstones"
        " WHERE group_id = ?",
        (group_id,),
    ).fetchone()
    return (
        _Group(row[6], group_id, "", row[7], row[8], row[9], Marks(), policy_of_row(*tuple(row)[:6])) if row else None
    )


def _jobs(policy: GroupPolicy, schedule: Sequence[tuple[Scope, int]], *, is_deleted: bool) -> list[Job]:
    """Return the jobs that erase expired messages of a group; all jobs for a deleted group."""
    return [Job(scope.name, interval) for scope, interval in schedule if is_deleted or scope.covers(policy)]


def _last_decision(connection: sqlite3.Connection, group_id: bytes) -> Decision | None:
    rows = [
        connection.execute(
            "SELECT at, actor, action FROM audit WHERE subject_id = ? AND action = ? ORDER BY audit_id DESC LIMIT 1",
            (subject, action),
        ).fetchone()
        for subject, action in ((group_id, AuditAction.POLICY_CHANGED), (b"", AuditAction.SETTINGS_CHANGED))
    ]
    return max((Decision(*row) for row in rows if row), key=lambda decision: decision.at, default=None)


def _waiting(connection: sqlite3.Connection, group: _Group, number: int) -> tuple[tuple[LaggingMember, ...], int]:
    """Return the members who have not fetched up to ``number``, those furthest behind first, and their total."""
    behind = "watermark < ?2"
    in_all = connection.execute(
        f"SELECT count(*) FROM members WHERE group_key = ?1 AND {behind}", (group.group_key, number)
    ).fetchone()[0]
    return _members(connection, group, behind, number), in_all


def _members(connection: sqlite3.Connection, group: _Group, condition: str, number: int) -> tuple[LaggingMember, ...]:
    """Return the members that match a condition on ``?2``, a number, those furthest behind first."""
    rows = connection.execute(
        "SELECT username, user_id, watermark, disabled,"
        " (SELECT max(last_used_at) FROM sessions WHERE sessions.user_id = users.user_id) AS last_used_at"
        f" FROM members JOIN users USING (user_id) WHERE group_key = ?1 AND {condition}"
        " ORDER BY watermark, member_id LIMIT ?3",
        (group.group_key, number, LISTED),
    ).fetchall()
    return tuple(
        LaggingMember(
            row["username"],
            str(UUID(bytes=row["user_id"])),
            row["watermark"],
            row["last_used_at"],
            bool(row["disabled"]),
        )
        for row in rows
    )


SEARCHED = 10_000
"""At most 10,000 messages of a user under a hold are searched for one in the group."""


def _holds(connection: sqlite3.Connection, group: _Group) -> tuple[list[CoveringHold], int]:
    """Return the holds on the group, and on users who may have sent messages here, and their total."""
    rows = connection.execute(
        "SELECT hold_id, group_key, user_id, subject_id, name, reason, added_by, added_at FROM holds"
        " WHERE group_key = ? OR user_id IS NOT NULL ORDER BY user_id IS NOT NULL, hold_id",
        (group.group_key,),
    ).fetchall()
    listed_holds: list[CoveringHold] = []
    in_all = 0
    for row in rows:
        is_on_user = row["user_id"] is not None
        has_sent = (
            _has_sent(connection, group.group_key, row["user_id"])
            if is_on_user and len(listed_holds) < LISTED
            else None
        )
        if is_on_user and has_sent is False:
            continue
        in_all += 1
        if len(listed_holds) < LISTED:
            covers = "user" if is_on_user else "group"
            subject = str(UUID(bytes=row["subject_id"]))
            values = (row["name"], subject, row["reason"], row["added_by"], row["added_at"])
            listed_holds.append(CoveringHold(row["hold_id"], covers, *values, has_sent))
    return listed_holds, in_all


def _has_sent(connection: sqlite3.Connection, group_key: int, user_id: bytes) -> bool | None:
    """Return whether a user has messages in a group; None if that would take too long to determine."""
    archived = connection.execute(
        "SELECT 1 FROM archive_senders WHERE sender_id = ? AND group_key = ?", (user_id, group_key)
    ).fetchone()
    if archived:
        return True
    count, is_found = connection.execute(
        "SELECT count(*), ifnull(max(group_key = ?), 0) FROM"
        f" (SELECT group_key FROM {SENT} WHERE sender_id = ? LIMIT ?)",
        (group_key, user_id, SEARCHED),
    ).fetchone()
    # Archived commits are not indexed by sender: a member, or a deleted account, may have sent some.
    may_have_sent_commits = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM archive_parts WHERE group_key = ?2) AND"
        " (EXISTS (SELECT 1 FROM members WHERE group_key = ?2 AND user_id = ?1)"
        " OR NOT EXISTS (SELECT 1 FROM users WHERE user_id = ?1))",
        (user_id, group_key),
    ).fetchone()[0]
    if is_found:
        return True
    return None if count == SEARCHED or may_have_sent_commits else False


def _message(
    connection: sqlite3.Connection,
    now: int,
    group: _Group,
    number: int,
    read_archived: ReadArchived | None,
) -> ExplainedMessage:
    row = connection.execute(
        "SELECT created_at, sender_id, is_commit FROM messages WHERE group_key = ? AND sequence_num = ?",
        (group.group_key, number),
    ).fetchone()
    facts: MessageFacts | None
    if row:
        part, unreadable = None, ""
        facts = MessageFacts(row[0], row[1], bool(row[2]))
        place = _hot_place(connection, group, number)
    else:
        facts, part, unreadable = _archived(connection, group, number, read_archived)
        place = "archived"
    if facts is None and not unreadable:
        is_unsent = group.deleted_at is None and number > group.marks.last_seq
        if is_unsent:
            return ExplainedMessage(number, "not sent yet")
        return ExplainedMessage(
            number, "gone", receipts=tuple(receipts.may_include(connection, group.group_id, number, LISTED))
        )
    if facts is None:
        return ExplainedMessage(number, place, part=part, unreadable=unreadable)
    fate = fate_of(connection, now, group.group_key, number, facts)
    waits_for_members = fate.waits_for_members
    lagging, in_all = _waiting(connection, group, number) if waits_for_members else ((), 0)
    unread = _members(connection, group, UNREAD_BY, number) if fate.timer and not fate.is_hidden else ()
    return ExplainedMessage(
        *(number, place, facts, _name(connection, facts.sender_id), fate, part),
        waiting=lagging,
        waiting_in_all=in_all,
        unread=unread,
        taken_back=_withdrawal(connection, group, number, facts),
    )


def _name(connection: sqlite3.Connection, user_id: bytes) -> str:
    """Return the name of an account; "" if it was deleted."""
    row = connection.execute("SELECT username FROM users WHERE user_id = ?", (user_id,)).fetchone()
    return row[0] if row else ""


def _withdrawal(
    connection: sqlite3.Connection, group: _Group, number: int, facts: MessageFacts
) -> ExplainedWithdrawal | None:
    withdrawal = taken_back.find(connection, group.group_key, number)
    if withdrawal is None:
        return None
    is_own = withdrawal.taken_by == facts.sender_id if withdrawal.taken_by else None
    return ExplainedWithdrawal(withdrawal.taken_at, _name(connection, withdrawal.taken_by), is_own)


def _hot_place(connection: sqlite3.Connection, group: _Group, number: int) -> str:
    """Return the place of a message that has a row in the hot store."""
    if number <= group.marks.archived_seq:
        return "copied"
    moving = connection.execute(
        "SELECT 1 FROM archive_move_ranges JOIN archive_moves USING (batch) WHERE finished_at IS NULL"
        " AND group_key = ? AND ? BETWEEN first_seq AND last_seq",
        (group.group_key, number),
    ).fetchone()
    return "moving" if moving else "hot"


def _archived(
    connection: sqlite3.Connection, group: _Group, number: int, read_archived: ReadArchived | None
) -> tuple[MessageFacts | None, tuple[int, int, int, int] | None, str]:
    """Return the archived message, its part, and the reason if it could not be read."""
    parts = connection.execute(
        "SELECT lifetime, span, oldest, newest FROM archive_parts"
        " WHERE group_key = ? AND ? BETWEEN first_seq AND last_seq ORDER BY span",
        (group.group_key, number),
    ).fetchall()
    if not parts:
        return None, None, ""
    first = (parts[0][0], parts[0][1], parts[0][2], parts[0][3])
    if read_archived is None:
        return None, first, "the archive was not read"
    try:
        facts = read_archived(group.group_key, number, [(row[0], row[1]) for row in parts])
    except ArchiveReadError as error:
        return None, first, str(error)
    if facts is None:
        return None, None, ""
    matching_parts = [tuple(row) for row in parts if row["oldest"] <= facts.created_at <= row["newest"]]
    lifetime, span, oldest, newest = matching_parts[0] if matching_parts else first
    return facts, (lifetime, span, oldest, newest), ""
