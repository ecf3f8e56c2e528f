"""Decides which messages of a group a reader may see now, in the database and in the archive.

A member sees a message if its number is above the mark ``gone_below``, it has not expired, and it is a commit or its
sender's account is not deleted. A self-destructing message is visible to members who joined before it was sent, each
until that reader's timer ends, or until the message is too old to be read for the first time. After that it is
redacted: readers only see that it existed. A message that was taken back is redacted for everyone.

The hot store, the archive and cached pages use this module. No other module decides whether a message is hidden from a
reader.
"""

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from conclave.retention import rules
from conclave.retention.policy import FOREVER, FormerPolicies, GroupPolicy
from conclave.retention.rules import DELETED_SENDERS, IS_TAKEN_BACK, MAX_AGE, TIMER_END, is_kept
from conclave.store.engine.connection import of_store

if TYPE_CHECKING:
    from conclave.store.resources.groups import GroupRow


class Numbered(Protocol):
    """The values of a cached message that decide whether it may still be served."""

    @property
    def sequence_num(self) -> int:
        """The message's number in its group."""

    @property
    def created_at(self) -> int:
        """The time at which the message was stored, Unix seconds."""

    @property
    def is_kept(self) -> bool:
        """Whether it was a commit exempt from expiry by age when it was read."""

    @property
    def redact_at(self) -> int:
        """The first Unix second at which it is redacted for its reader; FOREVER: never."""


class Visibility(NamedTuple):
    """Determines which messages of one group are visible at one moment.

    ``gone_below``: messages up to this number, inclusive, are never served again. ``hidden_before``: messages created
    before this Unix second, exclusive, are hidden. ``commits_above``: commits with greater numbers are not hidden by
    age. ``policy`` and ``expired_before``: the source of these bounds. ``now``: the moment, Unix seconds. ``redacts``:
    whether the group has had self-destructing messages. ``former``: policies that also hide by age, see FormerPolicies.
    """

    gone_below: int
    hidden_before: int
    commits_above: int
    policy: GroupPolicy
    expired_before: int
    now: int = 0
    redacts: bool = False
    former: tuple[GroupPolicy, ...] = ()

    def at(self, now: int) -> "Visibility":
        """Return the visibility at the Unix second ``now``."""
        hidden_before = _hidden_before(self.expired_before, (self.policy, *self.former), now)
        return self._replace(hidden_before=hidden_before, now=now)

    @property
    def hidden_for_ever(self) -> int:
        """The Unix second before which messages (exclusive) stay hidden under any later policy."""
        return max(self.expired_before, 0, *(each.expires_before(self.now) for each in self.former))

    def admits(self, message: Numbered) -> bool:
        """Return whether a message that was read earlier is still visible. Its sender was checked when it was read.

        For timers see ``redacts_any``.
        """
        return message.sequence_num > self.gone_below and (message.is_kept or message.created_at >= self.hidden_before)

    def admits_all(self, messages: Sequence[Numbered]) -> bool:
        """Return whether all ``messages``, ordered by number, are still visible and not redacted."""
        return not messages or (
            messages[0].sequence_num > self.gone_below
            and min(FOREVER if message.is_kept else message.created_at for message in messages) >= self.hidden_before
            and not self.redacts_any(messages)
        )

    def redacts_any(self, messages: Sequence[Numbered]) -> bool:
        """Return whether any of ``messages`` has been redacted since it was read."""
        return self.redacts and any(self.is_redacted(message) for message in messages)

    def is_redacted(self, message: Numbered) -> bool:
        """Return whether a message is redacted for its reader."""
        return message.redact_at <= self.now

    def condition(self, after: int, deleted_senders: str) -> str:
        """Return the SQL condition for the visible messages with numbers greater than ``after``.

        ``deleted_senders``: the user ids of deleted accounts, as an SQL list or query; "": no accounts.
        """
        above = str(self.commits_above) if self.policy.keeps_commits else ""
        return _condition(str(max(after, self.gone_below)), str(self.hidden_before), above, deleted_senders)

    def bounds(self, after: int) -> dict[str, int]:
        """Return the parameter values of ``hot``, for numbers greater than ``after``."""
        bounds = {"after": max(after, self.gone_below), "hidden_before": self.hidden_before}
        return bounds | {"commits_above": self.commits_above} if self.policy.keeps_commits else bounds

    @property
    def hot(self) -> tuple[str, str]:
        """The SQL condition for visible rows of ``messages``, and the SQL expression for whether a row is kept.

        The values are parameters, see ``bounds``, so that all readers share one prepared statement.
        """
        return (_HOT_WITH_COMMITS, _kept(":commits_above")) if self.policy.keeps_commits else (_HOT, _kept(""))

    @property
    def kept(self) -> str:
        """The SQL expression for whether a message of the archive is kept."""
        return _kept(str(self.commits_above) if self.policy.keeps_commits else "")


def of_group(connection: sqlite3.Connection, group: "GroupRow", now: int) -> Visibility:
    """Return the visibility of a group's messages to its members at the Unix second ``now``."""
    above = rules.commits_above(connection, group.group_key) if group.keeps_commits else FOREVER
    return _visibility(group, above, now, of_store(connection).former_policies)


def of_cached_group(group: "GroupRow", now: int, former: FormerPolicies) -> Visibility:
    """Return the visibility for a cached group whose marks and policy have not changed.

    Not for a policy that keeps commits: which commits it keeps changes with each fetch.
    """
    return _visibility(group, FOREVER, now, former)


FIRST_SCAN = 4096
"""How many messages are scanned first to find a visible one."""


def pass_hidden(connection: sqlite3.Connection, group: "GroupRow", visibility: Visibility, after: int) -> int:
    """Return a number, at least ``after``, so that the hot store has no visible messages in between.

    Under a legal hold, millions of messages may stay hidden by age for years, which readers must not scan. The cost is
    proportional to the number of hidden or of visible messages, whichever is smaller.
    """
    after, count = max(after, visibility.gone_below), FIRST_SCAN
    if visibility.policy.keeps_commits or not visibility.hidden_before:
        return after
    values = {"group_key": group.group_key, "hidden_before": visibility.hidden_before}
    while group.last_seq - after > count:
        if connection.execute(_ANY_VISIBLE, {**values, "after": after, "count": count}).fetchone():
            break
        after += count
        visible_count, first = connection.execute(_FIRST_VISIBLE, {**values, "count": count}).fetchone()
        if visible_count < count:
            return max(after, (first or group.last_seq + 1) - 1)
        count *= 2
    return after


_ANY_VISIBLE = (
    "SELECT 1 FROM messages WHERE group_key = :group_key AND sequence_num > :after AND sequence_num <= :after + :count"
    " AND +created_at >= :hidden_before LIMIT 1"
)

# Numbers may not ascend with time, so the result is the first visible message only if there are fewer than :count.
_FIRST_VISIBLE = (
    "SELECT count(*), min(sequence_num) FROM (SELECT sequence_num FROM messages INDEXED BY messages_by_age"
    " WHERE group_key = :group_key AND created_at >= :hidden_before LIMIT :count)"
)


def _hidden_before(expired_before: int, policies: Sequence[GroupPolicy], now: int) -> int:
    """Return the Unix second before which messages (exclusive) are hidden at ``now``: by the mark or by their age."""
    for each in policies:
        expired_before = max(expired_before, each.expires_before(now))
    return expired_before


def _visibility(group: "GroupRow", commits_above: int, now: int, former_policies: FormerPolicies) -> Visibility:
    policy, former = group.policy, former_policies.of(group.group_key)
    expired_before = max(group.expired_before, former_policies.hidden_before(group.group_key))
    hidden_before = _hidden_before(expired_before, (policy, *former), now)
    return Visibility(
        *(group.gone_below, hidden_before, commits_above, policy, expired_before, now),
        redacts=bool(group.self_destructs),
        former=former,
    )


class ReaderMessages(NamedTuple):
    """The messages that one reader sees of a group with self-destructing or taken back messages.

    ``query``: selects the messages with the columns ``seconds`` (null: no timer) and ``redact_at``, the first Unix
    second at which the message is redacted for the reader. ``condition``: for the messages to serve at the second
    ``:now``. ``values``: the parameters.
    """

    query: str
    condition: str
    values: dict[str, int]


def of_reader(member_id: int, joined_after: int, *, include_redacted: bool) -> ReaderMessages:
    """Return the messages that a member sees of a group with self-destructing or taken back messages.

    ``include_redacted``: include messages that are redacted for that member.
    """
    values = {"member_id": member_id, "joined_after": joined_after}
    return ReaderMessages(_TIMED, "TRUE" if include_redacted else "redact_at > :now", values)


_TIMED = f"""
SELECT messages.*, seconds, CASE
    WHEN taken_at IS NOT NULL THEN 0
    WHEN seconds IS NULL THEN {FOREVER}
    WHEN sequence_num <= :joined_after THEN 0
    ELSE ifnull((SELECT {TIMER_END} FROM timers
        WHERE timers.group_key = messages.group_key AND timers.sequence_num = messages.sequence_num
            AND timers.member_id = :member_id), iif(ended, 0, created_at + {MAX_AGE} + 1))
    END AS redact_at
FROM messages LEFT JOIN self_destructing USING (group_key, sequence_num)
    LEFT JOIN taken_back USING (group_key, sequence_num)
"""


def shows_any(connection: sqlite3.Connection, group: "GroupRow", visibility: Visibility, after: int, last: int) -> bool:
    """Return whether a message of the hot store after ``after``, up to ``last``, is visible and not taken back."""
    condition, _ = visibility.hot
    begin = pass_hidden(connection, group, visibility, after)
    row = connection.execute(
        f"SELECT 1 FROM messages WHERE group_key = :group_key AND {condition} AND sequence_num <= :last"
        f" AND NOT {IS_TAKEN_BACK} LIMIT 1",
        {"group_key": group.group_key, "last": last, **visibility.bounds(begin)},
    ).fetchone()
    return row is not None


def first_in_doubt(
    connection: sqlite3.Connection,
    group: "GroupRow",
    visibility: Visibility,
    after: int,
    earliest: int,
    timed: ReaderMessages | None,
) -> int | None:
    """Return the first number greater than ``after`` that is hidden now but would be visible at ``earliest``, or None.

    ``earliest``: the earliest Unix second that it may be, while the clock is in doubt. ``timed``: the reader's view of
    self-destructing messages; None if the group has none. An archived part counts as a whole.
    """
    earlier_view, after = visibility.at(earliest), max(after, visibility.gone_below)
    values = {
        "group_key": group.group_key,
        "then": earlier_view.hidden_before,
        "now": visibility.hidden_before,
        "commits_above": visibility.commits_above,
    }
    numbers: list[int | None] = []
    hot = max(after, group.archived_seq)
    if earlier_view.hidden_before < visibility.hidden_before:
        numbers += connection.execute(_IN_DOUBT_PART, {**values, "after": after}).fetchone()
        if connection.execute(_ANY_BETWEEN, values).fetchone():
            hot = pass_hidden(connection, group, earlier_view, hot)
            numbers += connection.execute(_IN_DOUBT, {**values, "after": hot}).fetchone() or ()
    if timed:
        query = _IN_DOUBT_TIMED.format(timed.query)
        values |= {**timed.values, "after": hot, "earliest": earliest, "time": visibility.now}
        numbers += connection.execute(query, values).fetchone()
    return min((number for number in numbers if number is not None), default=None)


_ANY_BETWEEN = (
    "SELECT 1 FROM messages INDEXED BY messages_by_age"
    " WHERE group_key = :group_key AND created_at >= :then AND created_at < :now LIMIT 1"
)

# Scan in the order of numbers: usually the reader is near the end, or a match is among the next messages.
_IN_DOUBT = (
    "SELECT sequence_num FROM messages WHERE group_key = :group_key AND sequence_num > :after"
    f" AND +created_at >= :then AND +created_at < :now AND NOT {is_kept(':commits_above')}"
    f" AND (is_commit OR sender_id NOT IN ({DELETED_SENDERS})) AND NOT {IS_TAKEN_BACK} ORDER BY sequence_num LIMIT 1"
)

_IN_DOUBT_PART = (
    "SELECT min(max(first_seq, :after + 1)) FROM archive_parts"
    " WHERE group_key = :group_key AND last_seq > :after AND newest >= :then AND oldest < :now"
)

# The subquery keeps SQLite from scanning all messages of the group.
_IN_DOUBT_TIMED = (
    "SELECT min(sequence_num) FROM ({}) WHERE group_key = :group_key AND +created_at >= :then"
    " AND sequence_num IN (SELECT sequence_num FROM self_destructing WHERE group_key = :group_key"
    " AND sequence_num > :after) AND redact_at > :earliest AND redact_at <= :time"
)


def _kept(commits_above: str) -> str:
    return is_kept(commits_above) if commits_above else "FALSE"


def _condition(after: str, hidden_before: str, commits_above: str, deleted_senders: str) -> str:
    unexpired = f"created_at >= {hidden_before}"
    if commits_above:
        unexpired = f"({unexpired} OR {_kept(commits_above)})"
    visible = f"sequence_num > {after} AND {unexpired}"
    return f"{visible} AND (is_commit OR sender_id NOT IN ({deleted_senders}))" if deleted_senders else visible


_HOT = _condition(":after", ":hidden_before", "", DELETED_SENDERS)
_HOT_WITH_COMMITS = _condition(":after", ":hidden_before", ":commits_above", DELETED_SENDERS)
