"""Decides which messages of a group a reader may see now, in the database and in the archive.

A member sees a message if its number is above the mark ``gone_below``, if it has not expired, and if it is a commit or
its sender's account was not deleted. A self-destructing message is seen by those who were members when it was sent and
have been since, each until a timer of that reader's own ends, or until the message is too old to be read for the first
time; after that it is only told that it was there. So it is of one that was taken back, for everybody. The hot store,
the archive and pages that were read a moment ago all ask here. Anything that hides a message from a reader belongs here
and nowhere else.
"""

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from conclave.retention import limits
from conclave.retention.policy import FOREVER, FormerPolicies, GroupPolicy
from conclave.retention.rules import DELETED_SENDERS, ENDS, IS_TAKEN_BACK, MAX_AGE, is_kept
from conclave.store.engine.connection import of_store

if TYPE_CHECKING:
    from conclave.store.resources.groups import GroupRow


class Numbered(Protocol):
    """The values of a message, read earlier, that decide whether it may still be sent."""

    @property
    def sequence_num(self) -> int:
        """The message's number in its group."""

    @property
    def created_at(self) -> int:
        """When the message was stored, Unix seconds."""

    @property
    def is_kept(self) -> bool:
        """Whether it is a commit that does not expire by age, as of when it was read."""

    @property
    def redact_at(self) -> int:
        """The first Unix second at which its reader sees it only redacted; FOREVER: there is none."""


class Sight(NamedTuple):
    """Which messages of one group may be seen at one moment.

    ``gone_below``: messages up to this number, inclusive, are never served again. ``hidden_before``: messages created
    before this Unix second, exclusive, are hidden. ``commits_above``: commits with greater numbers are not hidden by
    age. ``policy`` and ``expired_before``: what these follow from. ``now``: the moment, Unix seconds. ``redacts``:
    whether the group had self-destructing messages. ``former``: policies that hide by age too, see FormerPolicies.
    """

    gone_below: int
    hidden_before: int
    commits_above: int
    policy: GroupPolicy
    expired_before: int
    now: int = 0
    redacts: bool = False
    former: tuple[GroupPolicy, ...] = ()

    def at(self, now: int) -> "Sight":
        """Return the same for the Unix second ``now``."""
        hidden_before = _hidden_before(self.expired_before, (self.policy, *self.former), now)
        return self._replace(hidden_before=hidden_before, now=now)

    @property
    def hidden_for_ever(self) -> int:
        """What was created before this Unix second is hidden whatever policy follows: there is a mark, or will be."""
        return max(self.expired_before, 0, *(each.expires_before(self.now) for each in self.former))

    def admits(self, message: Numbered) -> bool:
        """Tell whether a message that was read earlier may still be seen. Its sender was checked when it was read.

        For timers see ``redacts_any``.
        """
        return message.sequence_num > self.gone_below and (message.is_kept or message.created_at >= self.hidden_before)

    def admits_all(self, messages: Sequence[Numbered]) -> bool:
        """Tell whether it admits all of ``messages``, which are in the order of their numbers."""
        return not messages or (
            messages[0].sequence_num > self.gone_below
            and min(FOREVER if message.is_kept else message.created_at for message in messages) >= self.hidden_before
            and not self.redacts_any(messages)
        )

    def redacts_any(self, messages: Sequence[Numbered]) -> bool:
        """Tell whether the reader may not see one of ``messages`` any more in the form in which it was read."""
        return self.redacts and any(self.is_redacted(message) for message in messages)

    def is_redacted(self, message: Numbered) -> bool:
        """Tell whether the reader sees a message only redacted."""
        return message.redact_at <= self.now

    def condition(self, after: int, deleted_senders: str) -> str:
        """Return the SQL condition for the messages with numbers greater than ``after`` that may be seen.

        ``deleted_senders``: the user ids of deleted accounts, as an SQL list or query; "" for none.
        """
        above = str(self.commits_above) if self.policy.keeps_commits else ""
        return _condition(str(max(after, self.gone_below)), str(self.hidden_before), above, deleted_senders)

    def bounds(self, after: int) -> dict[str, int]:
        """Return the values for the parameters of ``hot``, for numbers greater than ``after``."""
        bounds = {"after": max(after, self.gone_below), "hidden_before": self.hidden_before}
        return bounds | {"commits_above": self.commits_above} if self.policy.keeps_commits else bounds

    @property
    def hot(self) -> tuple[str, str]:
        """The SQL condition for rows of the table ``messages`` that may be seen, and what tells whether one is kept.

        Their parameters come from ``bounds``, so all readers share one text of a statement.
        """
        return (_HOT_WITH_COMMITS, _kept(":commits_above")) if self.policy.keeps_commits else (_HOT, _kept(""))

    @property
    def kept(self) -> str:
        """The SQL expression that tells of a message of the archive whether it is kept."""
        return _kept(str(self.commits_above) if self.policy.keeps_commits else "")


def of_group(connection: sqlite3.Connection, group: "GroupRow", now: int) -> Sight:
    """Return what a member of the group may see at the Unix second ``now``."""
    above = limits.commits_above(connection, group.group_key) if group.keeps_commits else FOREVER
    return _sight(group, above, now, of_store(connection).former_policies)


def of_known_group(group: "GroupRow", now: int, former: FormerPolicies) -> Sight:
    """Return what a member may see of a group that was read earlier and has the same marks and policy still.

    Not for a policy that keeps commits: what it keeps changes with each fetch.
    """
    return _sight(group, FOREVER, now, former)


LOOKED_AT = 4096
"""At first 4,096 messages are looked at to find one that is not hidden."""


def pass_hidden(connection: sqlite3.Connection, group: "GroupRow", sight: Sight, after: int) -> int:
    """Return a number, ``after`` or a greater one, up to which nothing after ``after`` is shown from the hot store.

    What is hidden by age may stay for years, under a legal hold, and be millions of messages. Readers that begin before
    them must not look at each. It looks at few more than there are hidden ones or shown ones, whichever are fewer.
    """
    after, count = max(after, sight.gone_below), LOOKED_AT
    if sight.policy.keeps_commits or not sight.hidden_before:
        return after
    values = {"group_key": group.group_key, "hidden_before": sight.hidden_before}
    while group.last_seq - after > count:
        if connection.execute(_SHOWN_NEXT, {**values, "after": after, "count": count}).fetchone():
            break
        after += count
        shown, first = connection.execute(_FIRST_SHOWN, {**values, "count": count}).fetchone()
        if shown < count:
            return max(after, (first or group.last_seq + 1) - 1)
        count *= 2
    return after


_SHOWN_NEXT = (
    "SELECT 1 FROM messages WHERE group_key = :group_key AND sequence_num > :after AND sequence_num <= :after + :count"
    " AND +created_at >= :hidden_before LIMIT 1"
)

# Numbers need not rise with times, so the first of some is the first of all only if there are no more.
_FIRST_SHOWN = (
    "SELECT count(*), min(sequence_num) FROM (SELECT sequence_num FROM messages INDEXED BY messages_by_age"
    " WHERE group_key = :group_key AND created_at >= :hidden_before LIMIT :count)"
)


def _hidden_before(expired_before: int, policies: Sequence[GroupPolicy], now: int) -> int:
    """Return the Unix second before which messages (exclusive) are hidden at ``now``: by the mark or by their age."""
    for each in policies:
        expired_before = max(expired_before, each.expires_before(now))
    return expired_before


def _sight(group: "GroupRow", commits_above: int, now: int, former_policies: FormerPolicies) -> Sight:
    policy, former = group.policy, former_policies.of(group.group_key)
    expired_before = max(group.expired_before, former_policies.hidden_before(group.group_key))
    hidden_before = _hidden_before(expired_before, (policy, *former), now)
    return Sight(
        *(group.gone_below, hidden_before, commits_above, policy, expired_before, now),
        redacts=bool(group.self_destructs),
        former=former,
    )


class Timed(NamedTuple):
    """What one reader sees of a group that has messages which destroy themselves, or were taken back.

    ``query``: selects its messages with the columns ``seconds`` (null: it has no timer) and ``redact_at``, the first
    Unix second at which the reader sees it only redacted. ``condition``: for those that the reader is to get at the
    second ``:now``. ``values``: those of the parameters.
    """

    query: str
    condition: str
    values: dict[str, int]


def of_reader(member_id: int, joined_after: int, *, include_redacted: bool) -> Timed:
    """Return what a member gets of messages that destroy themselves, or were taken back.

    ``include_redacted``: also those that are redacted for that member.
    """
    values = {"member_id": member_id, "joined_after": joined_after}
    return Timed(_TIMED, "TRUE" if include_redacted else "redact_at > :now", values)


_TIMED = f"""
SELECT messages.*, seconds, CASE
    WHEN taken_at IS NOT NULL THEN 0
    WHEN seconds IS NULL THEN {FOREVER}
    WHEN sequence_num <= :joined_after THEN 0
    ELSE ifnull((SELECT {ENDS} FROM timers
        WHERE timers.group_key = messages.group_key AND timers.sequence_num = messages.sequence_num
            AND timers.member_id = :member_id), iif(ended, 0, created_at + {MAX_AGE} + 1))
    END AS redact_at
FROM messages LEFT JOIN self_destructing USING (group_key, sequence_num)
    LEFT JOIN taken_back USING (group_key, sequence_num)
"""


def shows_any(connection: sqlite3.Connection, group: "GroupRow", sight: Sight, after: int, last: int) -> bool:
    """Tell whether ``sight`` admits a message of the hot store with a number greater than ``after``, up to ``last``.

    What was taken back does not count.
    """
    admitted, _ = sight.hot
    begin = pass_hidden(connection, group, sight, after)
    row = connection.execute(
        f"SELECT 1 FROM messages WHERE group_key = :group_key AND {admitted} AND sequence_num <= :last"
        f" AND NOT {IS_TAKEN_BACK} LIMIT 1",
        {"group_key": group.group_key, "last": last, **sight.bounds(begin)},
    ).fetchone()
    return row is not None


def first_doubtful(
    connection: sqlite3.Connection, group: "GroupRow", sight: Sight, after: int, earliest: int, timed: Timed | None
) -> int | None:
    """Return the first number greater than ``after`` that ``sight`` hides only because of its time; None for none.

    Only because of its time: by Unix second ``earliest`` it would be shown. ``timed``: what the reader sees of
    self-destructing messages; None if the group has none. In the archive a part counts as a whole.
    """
    then, after = sight.at(earliest), max(after, sight.gone_below)
    values = {
        "group_key": group.group_key,
        "then": then.hidden_before,
        "now": sight.hidden_before,
        "commits_above": sight.commits_above,
    }
    found: list[int | None] = []
    hot = max(after, group.archived_seq)
    if then.hidden_before < sight.hidden_before:
        found += connection.execute(_DOUBTFUL_PART, {**values, "after": after}).fetchone()
        if connection.execute(_ANY_BETWEEN, values).fetchone():
            hot = pass_hidden(connection, group, then, hot)
            found += connection.execute(_DOUBTFUL, {**values, "after": hot}).fetchone() or ()
    if timed:
        query = _DOUBTFUL_TIMED.format(timed.query)
        values |= {**timed.values, "after": hot, "earliest": earliest, "time": sight.now}
        found += connection.execute(query, values).fetchone()
    return min((number for number in found if number is not None), default=None)


_ANY_BETWEEN = (
    "SELECT 1 FROM messages INDEXED BY messages_by_age"
    " WHERE group_key = :group_key AND created_at >= :then AND created_at < :now LIMIT 1"
)

# In the order of numbers: readers are near the end, or one of the next messages is such a one.
_DOUBTFUL = (
    "SELECT sequence_num FROM messages WHERE group_key = :group_key AND sequence_num > :after"
    f" AND +created_at >= :then AND +created_at < :now AND NOT {is_kept(':commits_above')}"
    f" AND (is_commit OR sender_id NOT IN ({DELETED_SENDERS})) AND NOT {IS_TAKEN_BACK} ORDER BY sequence_num LIMIT 1"
)

_DOUBTFUL_PART = (
    "SELECT min(max(first_seq, :after + 1)) FROM archive_parts"
    " WHERE group_key = :group_key AND last_seq > :after AND newest >= :then AND oldest < :now"
)

# By their numbers: otherwise each message of the group would be looked at.
_DOUBTFUL_TIMED = (
    "SELECT min(sequence_num) FROM ({}) WHERE group_key = :group_key AND +created_at >= :then"
    " AND sequence_num IN (SELECT sequence_num FROM self_destructing WHERE group_key = :group_key"
    " AND sequence_num > :after) AND redact_at > :earliest AND redact_at <= :time"
)


def _kept(commits_above: str) -> str:
    return is_kept(commits_above) if commits_above else "FALSE"


def _condition(after: str, hidden_before: str, commits_above: str, deleted_senders: str) -> str:
    young = f"created_at >= {hidden_before}"
    if commits_above:
        young = f"({young} OR {_kept(commits_above)})"
    seen = f"sequence_num > {after} AND {young}"
    return f"{seen} AND (is_commit OR sender_id NOT IN ({deleted_senders}))" if deleted_senders else seen


_HOT = _condition(":after", ":hidden_before", "", DELETED_SENDERS)
_HOT_WITH_COMMITS = _condition(":after", ":hidden_before", ":commits_above", DELETED_SENDERS)
