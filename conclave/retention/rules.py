"""The rules by which messages are hidden and go, as one table: RULES. Everything that decides by one of them asks here.

A condition is SQL over the columns of ``messages``, or of ``archive_parts``, and what stands for the marks and the
policy of a group there: see Bounds. Spark plans by expressions of its own; the model in the tests checks both.
"""

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from conclave.retention.holds import HELD_GROUPS, HELD_SENDERS, UNHELD, has_held_senders
from conclave.retention.policy import FOREVER
from conclave.retention.policy_row import COLUMNS, EXPIRES_BEFORE, OLD_ENOUGH_BEFORE
from conclave.store.sender_index import SENT

LEAST_WATERMARK = "ifnull((SELECT min(watermark) FROM members WHERE members.group_key = groups.group_key), 0)"
"""What all current members of a row of ``groups`` have fetched. No group is without members."""

DELETED_SENDERS = "SELECT user_id FROM user_tombstones"
"""The deleted accounts of which messages may be left."""

_ERASABLE_BEFORE = (
    f"{OLD_ENOUGH_BEFORE} AS old_enough_before,"
    f" iif(group_key IN ({HELD_GROUPS}), 0, {OLD_ENOUGH_BEFORE}) AS erasable_before"
)

COMMITS_ABOVE = f"iif(keeps_commits, max(commits_below, {LEAST_WATERMARK}), {FOREVER})"
"""The number above which commits of a row of ``groups`` do not expire by age; FOREVER: all do."""

_FLOOR = f"iif(effective_expiry = 0, max(floor_seq, {LEAST_WATERMARK}), floor_seq)"

GOVERNED = f"""governed_groups AS (
    SELECT group_key, group_id, {COLUMNS}, floor_seq, gone_below, expired_before, archived_seq, self_destructs,
        taken_back_count,
        max(expired_before, {EXPIRES_BEFORE}) AS cutoff, {_ERASABLE_BEFORE},
        {COMMITS_ABOVE} AS commits_above, {_FLOOR} AS new_floor,
        iif(effective_expiry = 0, max(gone_below, {_FLOOR}), gone_below) AS gone FROM groups
), governed_tombstones AS (
    SELECT group_key, group_id, {COLUMNS}, created_at AS deleted_at, {_ERASABLE_BEFORE} FROM tombstones
)"""
"""Common table expressions: the groups, and the deleted ones, with what follows from their rows at the second ``:now``.

``cutoff``: what was created before this Unix second is hidden by age, but for commits with numbers greater than
``commits_above``. ``old_enough_before``: what was created before is old enough to be erased. ``erasable_before``:
likewise, but 0 under a legal hold. ``new_floor`` and ``gone``: what the next run raises the marks ``floor_seq`` and
``gone_below`` to.
"""

MAX_AGE = "(SELECT self_destruct_max_age FROM server_state)"
"""After how many seconds a self-destructing message is too old to be read for the first time."""

UNREAD = (
    "EXISTS (SELECT 1 FROM members AS behind WHERE behind.group_key = self_destructing.group_key"
    " AND behind.read_up_to < self_destructing.sequence_num AND behind.user_id != messages.sender_id)"
)
"""The SQL condition for self-destructing messages that somebody has not read who was a member when it was sent."""

TIMED = "self_destructing CROSS JOIN messages USING (group_key, sequence_num)"
"""The SQL tables of all self-destructing messages. Written so, SQLite does not look at the other messages."""

ENDS = "iif(told, 0, redact_at)"
"""The SQL expression for the second at which a timer ends. What a reader was told has ended stays so by any clock."""

_TIMERS = (
    "FROM timers AS pending JOIN members AS reader USING (member_id)"
    " WHERE pending.group_key = self_destructing.group_key"
    " AND pending.sequence_num = self_destructing.sequence_num"
)

REDACTED_FOR_ALL = (
    f"((ended OR messages.created_at < :now - {MAX_AGE} OR NOT {UNREAD})"
    # The first is a range of the index, the second decides.
    f" AND NOT EXISTS (SELECT 1 {_TIMERS} AND redact_at > :now AND {ENDS} > :now))"
)
"""The SQL condition, over TIMED, for messages that every reader sees only redacted at the Unix second ``:now``.

Readers are the members who were members when it was sent. Who has read a message has a timer for it, so the least of
what members have read tells whether all have; but a sender has not said so of the own message. Once it is too old
no member who has not read it may see it, and no timer starts; those that run go on.
"""

IS_REDACTED = (
    "EXISTS (SELECT 1 FROM self_destructing WHERE self_destructing.group_key = messages.group_key"
    f" AND self_destructing.sequence_num = messages.sequence_num AND {REDACTED_FOR_ALL})"
)
"""The SQL condition REDACTED_FOR_ALL for rows of the table ``messages``."""

ENDS_AT = (
    f"max(iif(NOT ended AND {UNREAD}, messages.created_at + {MAX_AGE} + 1, 0),"
    f" ifnull((SELECT max(iif(told, min(redact_at, :now), redact_at)) {_TIMERS}), 0))"
)
"""The SQL expression for the second from which on no member will see a self-destructing message, as things stand.

It has come at the second ``:now`` if REDACTED_FOR_ALL holds then, and only so. It costs more: all timers of the message
are looked at.
"""


IS_TAKEN_BACK = (
    "EXISTS (SELECT 1 FROM taken_back WHERE taken_back.group_key = messages.group_key"
    " AND taken_back.sequence_num = messages.sequence_num)"
)
"""The SQL condition for rows of the table ``messages`` that were taken back: everybody sees them only redacted."""


def is_kept(commits_above: str = "commits_above") -> str:
    """Return the condition for commits that do not expire by age. ``commits_above``: an SQL expression, as the column.

    The columns are those of ``messages``.
    """
    return f"(is_commit AND sequence_num > {commits_above})"


class Bounds(NamedTuple):
    """What a condition compares a message with: SQL expressions, by default the columns of GOVERNED.

    ``gone``: numbers up to it, inclusive, are not served. ``cutoff``: what was created before this Unix second is
    hidden by age, but for commits with numbers greater than ``commits_above``; "": no commit is kept.
    ``erasable_before``: only what was created before this Unix second may be erased; "": everything may. ``unheld``:
    only messages for which it holds may be erased; "": all. ``by_deleted``: those that a deleted account has sent.
    ``is_deleted``: the group is. ``is_taken_back``: the message was taken back.
    """

    gone: str = "gone"
    cutoff: str = "cutoff"
    commits_above: str = "commits_above"
    erasable_before: str = "erasable_before"
    unheld: str = UNHELD
    by_deleted: str = f"sender_id IN ({DELETED_SENDERS})"
    is_deleted: str = "TRUE"
    is_taken_back: str = IS_TAKEN_BACK

    def as_needed(self, connection: sqlite3.Connection) -> "Bounds":
        """Return them without what nothing in the store needs now: each condition costs every message, or group."""
        return self._replace(
            commits_above=self.commits_above if keeps_commits(connection) else "",
            unheld=self.unheld if has_held_senders(connection) else "",
        )


@dataclass(frozen=True)
class Rule:
    """A rule by which messages are hidden, and go once nothing withholds them: see ``due``.

    ``hides``: what, in words. ``since``: from which moment on, in words. ``tables``:
    where the hot store finds what it may hide, with a condition for the group. ``hot``: the condition for messages that
    it hides. ``some`` and ``whole``: of the archive, for parts of which it hides some message, and for those of which
    it hides all; "FALSE" if only a look at the rows can tell. ``only_if``: the condition for groups in which it may
    hide anything; others are not looked at.
    """

    hides: str
    since: str
    hot: Callable[[Bounds], str]
    some: Callable[[Bounds], str]
    whole: Callable[[Bounds], str]
    tables: str = "messages"
    only_if: Callable[[Bounds], str] = lambda _: "TRUE"

    def due(self, bounds: Bounds) -> str:
        """Return the condition for messages that it hides and that may be erased."""
        if bounds.erasable_before:  # as one bound, so that a look into an index passes over nothing that has to stay
            bounds = bounds._replace(cutoff=f"min({bounds.cutoff}, {bounds.erasable_before})")
        return _both(self.hot(bounds), may_go(bounds))


def may_go(bounds: Bounds) -> str:
    """Return the condition for messages that nothing withholds from being erased, once they are hidden."""
    old_enough = f"messages.created_at < {bounds.erasable_before}" if bounds.erasable_before else ""
    return _both(old_enough, bounds.unheld) or "TRUE"


def named(rules: Iterable[str], bounds: Bounds) -> str:
    """Return the SQL expression for the first of ``rules`` that hides a message; null: none does."""
    cases = (f"WHEN {RULES[each].hot(bounds)} THEN '{each}'" for each in rules)
    return f"CASE {' '.join(cases)} END"


def some_of_part(rules: Iterable[str], bounds: Bounds) -> str:
    """Return the condition for parts of the archive of which one of ``rules`` may let messages go."""
    return f"(oldest < {bounds.erasable_before} AND ({' OR '.join(RULES[each].some(bounds) for each in rules)}))"


def certain_of_part(rules: Iterable[str], bounds: Bounds) -> str:
    """Return the condition for parts of the archive of which one of ``rules`` lets messages go for certain.

    Commits that are kept are not told apart from others, nor, while any user is under a legal hold, who has sent what.
    """
    return "FALSE" if bounds.unheld else some_of_part(rules, bounds)


def whole_part(rules: Iterable[str], bounds: Bounds) -> str:
    """Return the condition for parts of the archive of which nothing stays.

    While any user is under a legal hold there are none: the index does not say who has sent commits.
    """
    unheld = f"NOT EXISTS ({HELD_SENDERS})" if bounds.unheld else ""
    whole = " OR ".join(RULES[each].whole(bounds) for each in rules)
    return f"({_both(unheld, f'newest < {bounds.erasable_before}')} AND ({whole}))"


def _both(one: str, other: str) -> str:
    """Return both conditions as one; "" stands for none."""
    return f"{one} AND {other}" if one and other else one or other


def _is_aged(bounds: Bounds) -> str:
    aged = f"messages.created_at < {bounds.cutoff}"
    return f"{aged} AND NOT {is_kept(bounds.commits_above)}" if bounds.commits_above else aged


def _is_aged_part(created: str, bounds: Bounds) -> str:
    aged = f"{created} < {bounds.cutoff}"
    return f"({aged} AND last_seq <= {bounds.commits_above})" if bounds.commits_above else aged


DELETED_GROUP, FETCHED, EXPIRED = "deleted_group", "fetched", "expired"
REDACTED, TAKEN_BACK, DELETED_ACCOUNT = "redacted", "taken_back", "deleted_account"
"""The rules by which messages go, as reports name them."""

RULES = {
    DELETED_GROUP: Rule(
        hides="all messages of a group that was deleted",
        since="its deletion",
        hot=lambda bounds: bounds.is_deleted,
        some=lambda bounds: bounds.is_deleted,
        whole=lambda bounds: bounds.is_deleted,
    ),
    FETCHED: Rule(
        hides="what all members have fetched of a group in delete-after-fetch",
        since="the run that raised the mark ``gone_below``",
        hot=lambda bounds: f"sequence_num <= {bounds.gone}",
        some=lambda bounds: f"first_seq <= {bounds.gone}",
        whole=lambda bounds: f"last_seq <= {bounds.gone}",
        only_if=lambda bounds: f"{bounds.gone} > 0",
    ),
    EXPIRED: Rule(
        hides="what is too old by the policy, or was by a former one: the mark ``expired_before``",
        since="the second after the last of its lifetime",
        hot=_is_aged,
        some=lambda bounds: _is_aged_part("oldest", bounds),
        whole=lambda bounds: _is_aged_part("newest", bounds),
        only_if=lambda bounds: f"{bounds.cutoff} > 0",
    ),
    REDACTED: Rule(
        hides="self-destructing messages at their end for every reader",
        since="the end of the last timer, or the second from which it is too old for one to start",
        hot=lambda _: IS_REDACTED,
        some=lambda _: "FALSE",  # none of these moves to the archive
        whole=lambda _: "FALSE",
        tables=TIMED,
        only_if=lambda _: "self_destructs",
    ),
    TAKEN_BACK: Rule(
        hides="what its sender, or an admin, has taken back",
        since="the moment at which it was",
        hot=lambda bounds: bounds.is_taken_back,
        some=lambda _: (
            "EXISTS (SELECT 1 FROM taken_back WHERE taken_back.group_key = archive_parts.group_key AND NOT erased"
            " AND sequence_num BETWEEN first_seq AND last_seq)"
        ),
        whole=lambda _: "FALSE",
        tables="taken_back CROSS JOIN messages USING (group_key, sequence_num)",
        only_if=lambda _: "taken_back_count",
    ),
    DELETED_ACCOUNT: Rule(
        hides="what a deleted account has sent, but for commits",
        since="its deletion",
        hot=lambda bounds: f"{bounds.by_deleted} AND NOT is_commit",
        some=lambda bounds: (
            f"group_key IN (SELECT group_key FROM archive_senders WHERE {_both(bounds.by_deleted, bounds.unheld)})"
        ),
        whole=lambda _: "FALSE",
        tables=f"({DELETED_SENDERS}) CROSS JOIN {SENT} AND sender_id = user_id",
    ),
}
"""The table of the rules. What falls under several counts for the first of them."""

MARKED = (FETCHED, EXPIRED)
"""The rules that a policy or a mark gives a group: a run goes by them where it covers the group, or a mark is past."""

IN_ANY_RUN = (REDACTED, TAKEN_BACK)
"""The rules by which any run erases, in any group that is not deleted."""

OF_LIVING = (*MARKED, *IN_ANY_RUN, DELETED_ACCOUNT)
"""The rules for messages of a group that is not deleted."""

SESSIONS, INVITES = "sessions", "invites"
"""What else a run deletes: sessions that have expired, and invites that are too old."""

REPORTED = (EXPIRED, FETCHED, REDACTED, TAKEN_BACK, DELETED_GROUP, DELETED_ACCOUNT, SESSIONS, INVITES)
"""What a run deletes, in the order of reports."""


def keeps_commits(connection: sqlite3.Connection) -> bool:
    """Tell whether any group keeps commits from expiring by age."""
    return connection.execute("SELECT 1 FROM groups WHERE keeps_commits LIMIT 1").fetchone() is not None
