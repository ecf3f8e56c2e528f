"""Defines the rules by which messages are hidden and deleted, as one table: RULES.

Conditions are SQL over the columns of ``messages`` or ``archive_parts``, and over expressions for the marks and the
policy of a group: see Bounds. Spark has its own expressions for plans; the model in the tests checks both.
"""

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from conclave.retention.holds import HELD_GROUPS, HELD_SENDERS, UNHELD, has_held_senders
from conclave.retention.policy import FOREVER, GroupPolicy, Source
from conclave.store.sender_index import SENT

POLICY_COLUMNS = "effective_expiry, least_lifetime, hold_limit, keeps_commits, erases, policy_source"
"""The columns of the tables ``groups`` and ``tombstones`` that store the policy in force."""


@lru_cache(maxsize=4096)  # used by each page; bounded, since admins choose the values
def policy_of_row(
    lifetime: int, min_lifetime: int, hold_limit: int, keeps_commits: int, erases: int, source: str
) -> GroupPolicy:
    """Return the policy of a row with POLICY_COLUMNS. A row without a policy keeps everything."""
    return GroupPolicy(
        lifetime,
        min_lifetime,
        hold_limit,
        keeps_commits=bool(keeps_commits),
        erases=bool(erases),
        source=Source(source) if source else Source.NONE,
    )


def find_policy(connection: sqlite3.Connection, group_key: int) -> GroupPolicy | None:
    """Return the policy of a group, or of a deleted group that has a tombstone; None if there is no row."""
    for table in ("groups", "tombstones"):
        row = connection.execute(f"SELECT {POLICY_COLUMNS} FROM {table} WHERE group_key = ?", (group_key,)).fetchone()
        if row:
            return policy_of_row(*row)
    return None


_AGE_LIMIT = "iif(effective_expiry = 0, hold_limit, effective_expiry)"

EXPIRES_BEFORE = f"iif({_AGE_LIMIT} > 0, max(0, :now - {_AGE_LIMIT}), 0)"
"""The SQL expression for ``GroupPolicy.expires_before`` of the second ``:now``, over POLICY_COLUMNS."""

OLD_ENOUGH_BEFORE = (
    f"CASE WHEN NOT erases THEN 0 WHEN least_lifetime = 0 THEN {FOREVER} ELSE max(0, :now - least_lifetime + 1) END"
)
"""The SQL expression for ``GroupPolicy.erasable_before`` of the second ``:now``, over POLICY_COLUMNS."""

LEAST_WATERMARK = "ifnull((SELECT min(watermark) FROM members WHERE members.group_key = groups.group_key), 0)"
"""The number up to which all current members of a row of ``groups`` have fetched. Every group has members."""

DELETED_SENDERS = "SELECT user_id FROM user_tombstones"
"""The deleted accounts whose messages may not all be erased."""

_ERASABLE_BEFORE = (
    f"{OLD_ENOUGH_BEFORE} AS old_enough_before,"
    f" iif(group_key IN ({HELD_GROUPS}), 0, {OLD_ENOUGH_BEFORE}) AS erasable_before"
)

COMMITS_ABOVE = f"iif(keeps_commits, max(commits_below, {LEAST_WATERMARK}), {FOREVER})"
"""The number above which commits of a row of ``groups`` do not expire by age; FOREVER: all commits expire."""

_FLOOR = f"iif(effective_expiry = 0, max(floor_seq, {LEAST_WATERMARK}), floor_seq)"

GOVERNED = f"""governed_groups AS (
    SELECT group_key, group_id, {POLICY_COLUMNS}, floor_seq, gone_below, expired_before, archived_seq, self_destructs,
        taken_back_count,
        max(expired_before, {EXPIRES_BEFORE}) AS cutoff, {_ERASABLE_BEFORE},
        {COMMITS_ABOVE} AS commits_above, {_FLOOR} AS new_floor,
        iif(effective_expiry = 0, max(gone_below, {_FLOOR}), gone_below) AS gone FROM groups
), governed_tombstones AS (
    SELECT group_key, group_id, {POLICY_COLUMNS}, created_at AS deleted_at, {_ERASABLE_BEFORE} FROM tombstones
)"""
"""Common table expressions: living and deleted groups, with the bounds that follow at the Unix second ``:now``.

``cutoff``: messages created before this Unix second are hidden by age, except commits with numbers greater than
``commits_above``. ``old_enough_before``: messages created before it are old enough to be erased. ``erasable_before``:
the same, but 0 under a legal hold. ``new_floor`` and ``gone``: the marks ``floor_seq`` and ``gone_below`` after the
next run.
"""

MAX_AGE = "(SELECT self_destruct_max_age FROM server_state)"
"""The age in seconds at which a self-destructing message can no longer be read for the first time."""

UNREAD = (
    "EXISTS (SELECT 1 FROM members AS behind WHERE behind.group_key = self_destructing.group_key"
    " AND behind.read_up_to < self_destructing.sequence_num AND behind.user_id != messages.sender_id)"
)
"""The SQL condition for self-destructing messages that some member at the time of sending has not read."""

TIMED = "self_destructing CROSS JOIN messages USING (group_key, sequence_num)"
"""The SQL tables of all self-destructing messages. The CROSS JOIN keeps SQLite from scanning other messages."""

TIMER_END = "iif(told, 0, redact_at)"
"""The SQL expression for the second at which a timer ends; 0 once the end was announced, independent of the clock."""

_TIMERS = (
    "FROM timers AS pending JOIN members AS reader USING (member_id)"
    " WHERE pending.group_key = self_destructing.group_key"
    " AND pending.sequence_num = self_destructing.sequence_num"
)

REDACTED_FOR_ALL = (
    f"((ended OR messages.created_at < :now - {MAX_AGE} OR NOT {UNREAD})"
    # The first comparison allows a range scan of the index. The second is exact.
    f" AND NOT EXISTS (SELECT 1 {_TIMERS} AND redact_at > :now AND {TIMER_END} > :now))"
)
"""The SQL condition, over TIMED, for messages that are redacted for every reader at the Unix second ``:now``.

Readers are the current members who were members when it was sent. A reader's first reading starts a timer, so the
minimum of ``read_up_to`` shows whether all have read it; senders do not count. Once a message is too old, members who
have not read it never see it, and no timer starts. Running timers continue.
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
"""The SQL expression for the first second at which no member sees a self-destructing message, by the timers so far.

It is at most ``:now`` if and only if REDACTED_FOR_ALL is true at ``:now``. It costs more, since it reads all timers.
"""


IS_TAKEN_BACK = (
    "EXISTS (SELECT 1 FROM taken_back WHERE taken_back.group_key = messages.group_key"
    " AND taken_back.sequence_num = messages.sequence_num)"
)
"""The SQL condition for rows of ``messages`` that were taken back, and are redacted for every reader."""


def is_kept(commits_above: str = "commits_above") -> str:
    """Return the condition, over the columns of ``messages``, for commits that do not expire by age.

    ``commits_above``: an SQL expression for that column of GOVERNED.
    """
    return f"(is_commit AND sequence_num > {commits_above})"


class Bounds(NamedTuple):
    """The bounds of a condition: SQL expressions, by default the columns of GOVERNED.

    ``gone``: messages up to this number, inclusive, are not served. ``cutoff``: messages created before this Unix
    second are hidden by age, except commits with numbers greater than ``commits_above``; "": no commit is kept.
    ``erasable_before``: only messages created before this Unix second may be erased; "": all. ``unheld``: the condition
    for messages under no legal hold; "": all. ``by_deleted``: the condition for messages of deleted accounts.
    ``is_deleted``: whether the group is deleted. ``is_taken_back``: whether the message was taken back.
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
        """Return the bounds without the conditions that have no effect now: each costs time for every row."""
        return self._replace(
            commits_above=self.commits_above if keeps_commits(connection) else "",
            unheld=self.unheld if has_held_senders(connection) else "",
        )


@dataclass(frozen=True)
class Rule:
    """A rule by which messages are hidden, and deleted once they may be erased: see ``due``.

    ``hides``: the hidden messages, in words. ``since``: since when, in words. ``tables``: the tables of the hot store
    with the messages that the rule may hide. ``hot``: the condition for the messages that it hides. ``some`` and
    ``whole``: the conditions for parts of the archive in which it hides some, or all, messages; "FALSE" if only the
    rows show that. ``only_if``: the condition for groups in which it may hide messages; others are skipped.
    """

    hides: str
    since: str
    hot: Callable[[Bounds], str]
    some: Callable[[Bounds], str]
    whole: Callable[[Bounds], str]
    tables: str = "messages"
    only_if: Callable[[Bounds], str] = lambda _: "TRUE"

    def due(self, bounds: Bounds) -> str:
        """Return the condition for messages that the rule hides and that may be erased."""
        if bounds.erasable_before:  # one bound, so that a scan of the index does not visit messages that must stay
            bounds = bounds._replace(cutoff=f"min({bounds.cutoff}, {bounds.erasable_before})")
        return _both(self.hot(bounds), may_erase(bounds))


def may_erase(bounds: Bounds) -> str:
    """Return the condition for messages that may be erased once they are hidden."""
    is_old_enough = f"messages.created_at < {bounds.erasable_before}" if bounds.erasable_before else ""
    return _both(is_old_enough, bounds.unheld) or "TRUE"


def rule_name(rules: Iterable[str], bounds: Bounds) -> str:
    """Return the SQL expression for the name of the first of ``rules`` that hides a message, or null."""
    cases = (f"WHEN {RULES[each].hot(bounds)} THEN '{each}'" for each in rules)
    return f"CASE {' '.join(cases)} END"


def some_of_part(rules: Iterable[str], bounds: Bounds) -> str:
    """Return the condition for parts of the archive from which one of ``rules`` may delete messages."""
    return f"(oldest < {bounds.erasable_before} AND ({' OR '.join(RULES[each].some(bounds) for each in rules)}))"


def certain_of_part(rules: Iterable[str], bounds: Bounds) -> str:
    """Return the condition for parts of the archive from which one of ``rules`` certainly deletes messages.

    "FALSE" while any user is under a legal hold: the index does not record the sender of each message.
    """
    return "FALSE" if bounds.unheld else some_of_part(rules, bounds)


def whole_part(rules: Iterable[str], bounds: Bounds) -> str:
    """Return the condition for parts of the archive whose messages are all deleted.

    No part matches while any user is under a legal hold: the index does not record the senders of commits.
    """
    unheld = f"NOT EXISTS ({HELD_SENDERS})" if bounds.unheld else ""
    whole = " OR ".join(RULES[each].whole(bounds) for each in rules)
    return f"({_both(unheld, f'newest < {bounds.erasable_before}')} AND ({whole}))"


def _both(one: str, other: str) -> str:
    """Return the conjunction of two conditions. Each may be "", which means true."""
    return f"{one} AND {other}" if one and other else one or other


def _is_expired(bounds: Bounds) -> str:
    is_old = f"messages.created_at < {bounds.cutoff}"
    return f"{is_old} AND NOT {is_kept(bounds.commits_above)}" if bounds.commits_above else is_old


def _is_expired_part(created: str, bounds: Bounds) -> str:
    is_old = f"{created} < {bounds.cutoff}"
    return f"({is_old} AND last_seq <= {bounds.commits_above})" if bounds.commits_above else is_old


DELETED_GROUP, FETCHED, EXPIRED = "deleted_group", "fetched", "expired"
REDACTED, TAKEN_BACK, DELETED_ACCOUNT = "redacted", "taken_back", "deleted_account"
"""The names of the rules, as in reports."""

RULES = {
    DELETED_GROUP: Rule(
        hides="all messages of a group that was deleted",
        since="its deletion",
        hot=lambda bounds: bounds.is_deleted,
        some=lambda bounds: bounds.is_deleted,
        whole=lambda bounds: bounds.is_deleted,
    ),
    FETCHED: Rule(
        hides="messages that all members have fetched of a group in delete-after-fetch",
        since="the run that raised the mark ``gone_below``",
        hot=lambda bounds: f"sequence_num <= {bounds.gone}",
        some=lambda bounds: f"first_seq <= {bounds.gone}",
        whole=lambda bounds: f"last_seq <= {bounds.gone}",
        only_if=lambda bounds: f"{bounds.gone} > 0",
    ),
    EXPIRED: Rule(
        hides="messages that expired by age under the policy, or a former one: the mark ``expired_before``",
        since="the first second after their lifetime",
        hot=_is_expired,
        some=lambda bounds: _is_expired_part("oldest", bounds),
        whole=lambda bounds: _is_expired_part("newest", bounds),
        only_if=lambda bounds: f"{bounds.cutoff} > 0",
    ),
    REDACTED: Rule(
        hides="self-destructing messages that have ended for every reader",
        since="the end of the last timer, or the age at which no timer can start",
        hot=lambda _: IS_REDACTED,
        some=lambda _: "FALSE",  # self-destructing messages do not move to the archive
        whole=lambda _: "FALSE",
        tables=TIMED,
        only_if=lambda _: "self_destructs",
    ),
    TAKEN_BACK: Rule(
        hides="messages that their sender, or an admin, took back",
        since="the withdrawal",
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
        hides="messages of a deleted account, except commits",
        since="its deletion",
        hot=lambda bounds: f"{bounds.by_deleted} AND NOT is_commit",
        some=lambda bounds: (
            f"group_key IN (SELECT group_key FROM archive_senders WHERE {_both(bounds.by_deleted, bounds.unheld)})"
        ),
        whole=lambda _: "FALSE",
        tables=f"({DELETED_SENDERS}) CROSS JOIN {SENT} AND sender_id = user_id",
    ),
}
"""All rules by name. A message under several rules counts for the first of them."""

POLICY_RULES = (FETCHED, EXPIRED)
"""The rules that follow from a policy or a mark. A run applies them to groups that it covers, or past a mark."""

ANY_RUN_RULES = (REDACTED, TAKEN_BACK)
"""The rules that any run applies, to any living group."""

LIVING_RULES = (*POLICY_RULES, *ANY_RUN_RULES, DELETED_ACCOUNT)
"""The rules for messages of a living group."""

SESSIONS, INVITES = "sessions", "invites"
"""The names of the other counts: expired sessions and invites."""

REPORTED = (EXPIRED, FETCHED, REDACTED, TAKEN_BACK, DELETED_GROUP, DELETED_ACCOUNT, SESSIONS, INVITES)
"""The counts in a report of a run, in order."""


def keeps_commits(connection: sqlite3.Connection) -> bool:
    """Return whether any group exempts commits from expiry by age."""
    return connection.execute("SELECT 1 FROM groups WHERE keeps_commits LIMIT 1").fetchone() is not None


class ErasureLimits(NamedTuple):
    """The bounds of hidden and erasable messages of a group: see ``rules.Bounds``.

    ``gone``: messages up to this number, inclusive, are never served again. ``cutoff``: messages created before this
    Unix second, exclusive, are hidden by age or by the mark, except commits with numbers above ``commits_above``.
    ``erasable_before``: messages created before this Unix second, exclusive, are old enough; 0: nothing may be erased.
    ``is_deleted``: the group has a tombstone.
    """

    gone: int
    cutoff: int
    commits_above: int
    erasable_before: int
    is_deleted: bool


_LIMITS = f"""
WITH {GOVERNED}
SELECT gone_below, cutoff, commits_above, erasable_before, FALSE FROM governed_groups WHERE group_key = :group_key
UNION ALL
SELECT 0, 0, {FOREVER}, erasable_before, TRUE FROM governed_tombstones WHERE group_key = :group_key
"""


def commits_above(connection: sqlite3.Connection, group_key: int) -> int:
    """Return the number above which commits of a group do not expire by age; FOREVER: all commits expire."""
    row = connection.execute(f"SELECT {COMMITS_ABOVE} FROM groups WHERE group_key = ?", (group_key,)).fetchone()
    return int(row[0]) if row else FOREVER


def keeps_commit(connection: sqlite3.Connection, group_key: int, number: int) -> bool:
    """Return whether the commit with this number is exempt from expiry by age."""
    return number > commits_above(connection, group_key)


def limits_of(connection: sqlite3.Connection, group_key: int, now: int) -> ErasureLimits | None:
    """Return the limits of a living or deleted group at the Unix second ``now``; None if it has no row."""
    row = connection.execute(_LIMITS, {"group_key": group_key, "now": now}).fetchone()
    return ErasureLimits(row[0], row[1], row[2], row[3], bool(row[4])) if row else None
