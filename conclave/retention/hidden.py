"""Counts the messages of a group that are visible at one horizon and hidden at another.

In the hot store each message is examined, in the archive only the index. If only some messages of a partition become
hidden, the archive itself must be read: see ``ArchiveCount``.
"""

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from conclave.retention.policy import FOREVER
from conclave.retention.rules import GOVERNED, is_kept
from conclave.retention.stretches import Part, Stretch


class Horizon(NamedTuple):
    """The bounds of the hidden messages of a group at one moment."""

    gone: int
    """Messages up to this number, inclusive."""
    before: int
    """Messages created before this Unix second, exclusive, except kept commits."""
    commits_above: int
    """Commits with greater numbers are kept; FOREVER: no commit is kept."""
    border: int
    """Messages up to this number, inclusive, are in the archive."""

    def is_kept(self, above: str) -> str:
        """Return the SQL condition for kept commits. ``above``: the SQL expression for ``commits_above``."""
        return "FALSE" if self.commits_above == FOREVER else is_kept(above)


@dataclass(frozen=True)
class MessageTotals:
    """Totals over a set of messages."""

    messages: int = 0
    body_bytes: int = 0
    """0 if they were not measured."""
    oldest: int = 0
    """The creation time of the oldest, Unix seconds; 0 without messages."""
    newest: int = 0
    """The creation time of the newest, Unix seconds; 0 without messages."""
    held: int = 0
    """How many are under a legal hold; 0 if not counted."""
    young: int = 0
    """How many others are not old enough to be erased; 0 if not counted."""

    def __add__(self, other: "MessageTotals") -> "MessageTotals":
        """Return the totals over both sets."""
        return MessageTotals(
            self.messages + other.messages,
            self.body_bytes + other.body_bytes,
            min((each.oldest for each in (self, other) if each.messages), default=0),
            max(self.newest, other.newest),
            self.held + other.held,
            self.young + other.young,
        )


NOTHING = MessageTotals()


@dataclass(frozen=True)
class Aggregates:
    """The SQL aggregates for MessageTotals, except the bytes."""

    held: str = "FALSE"
    """The SQL condition for messages under a legal hold."""
    erasable_before: int = FOREVER
    """Messages created before this Unix second are old enough to be erased."""

    @property
    def sql(self) -> str:
        """The columns to select, in the hot store or in the archive."""
        young = "FALSE"
        if self.erasable_before < FOREVER:
            young = f"NOT ({self.held}) AND created_at >= {self.erasable_before:d}"
        return (
            "count(*) AS messages, min(created_at) AS oldest, max(created_at) AS newest,"
            f" sum(CASE WHEN {self.held} THEN 1 ELSE 0 END) AS held, sum(CASE WHEN {young} THEN 1 ELSE 0 END) AS young"
        )

    @staticmethod
    def totals(row: Iterable[Any], body_bytes: int = 0) -> MessageTotals:
        """Return the totals. ``row``: the values of ``sql``."""
        messages, *others = row
        return MessageTotals(messages, body_bytes, *others) if messages else NOTHING


ALL = Aggregates()
"""Aggregates that do not count messages that may not be erased."""


@dataclass(frozen=True)
class ArchiveCount:
    """A count that requires reading the archive: the messages of ``stretch`` that ``horizon`` hides."""

    stretch: Stretch
    horizon: Horizon
    aggregates: Aggregates


def horizons(
    connection: sqlite3.Connection, group_keys: Collection[int], now: int, gone: str = "gone"
) -> dict[int, Horizon]:
    """Return the horizons of groups at the Unix second ``now``, by key.

    ``gone``: the column of GOVERNED for ``Horizon.gone``. The default is the mark after the next run.
    """
    query = (
        f"WITH {GOVERNED} SELECT group_key, {gone}, cutoff, commits_above, archived_seq FROM governed_groups"
        " WHERE group_key IN (SELECT value FROM json_each(:keys))"
    )
    rows = connection.execute(query, {"keys": json.dumps([*group_keys]), "now": now}) if group_keys else ()
    return {key: Horizon(*values) for key, *values in rows}


def in_hot_store(
    connection: sqlite3.Connection,
    group_key: int,
    former: Horizon,
    current: Horizon,
    aggregates: Aggregates = ALL,
    *,
    where: str = "TRUE",
    now: int = 0,
    is_measured: bool = False,
) -> MessageTotals:
    """Count the messages of the hot store that ``former`` shows and ``current`` hides.

    ``current`` must hide at least what ``former`` hides. ``where``: an SQL condition for the messages to count, which
    may use the parameter ``:now``. ``is_measured``: count bytes too, which takes much longer.
    """
    values = _values(group_key, former, current) | {"now": now}
    result = NOTHING
    for condition in _newly_hidden(former, current):
        source = f"FROM messages WHERE group_key = :group_key AND {condition} AND {where}"
        totals = aggregates.totals(connection.execute(f"SELECT {aggregates.sql} {source}", values).fetchone())
        if is_measured and totals.messages:
            totals += MessageTotals(0, connection.execute(f"SELECT sum(size) {source}", values).fetchone()[0])
        result += totals
    return result


def _newly_hidden(former: Horizon, current: Horizon) -> Iterator[str]:
    """Yield disjoint conditions: by age, by number, and commits that are no longer kept.

    Each is a range of one index, and needs no other column if no commit is kept. The plus signs keep SQLite from
    using another index.
    """
    was_kept, is_kept_now = former.is_kept(":commits_above"), current.is_kept(":new_commits_above")
    if current.before > former.before:
        expired = "created_at >= :before AND created_at < :new_before AND +sequence_num > :after"
        yield expired if is_kept_now == "FALSE" else f"{expired} AND NOT {is_kept_now}"
    if current.gone > max(former.gone, former.border):
        yield (
            "sequence_num > :after AND sequence_num <= :new_gone AND (+created_at >= :new_before"
            f" OR (+created_at >= :before AND {is_kept_now}) OR (+created_at < :before AND {was_kept}))"
        )
    if current.commits_above > former.commits_above:
        yield (
            "created_at < :before AND is_commit AND +sequence_num > max(:after, :commits_above, :new_gone)"
            " AND +sequence_num <= :new_commits_above"
        )


def sender_condition(connection: sqlite3.Connection) -> str:
    """Return the SQL condition for commits and for messages whose sender's account is not deleted."""
    if connection.execute("SELECT 1 FROM user_tombstones").fetchone():
        return "(is_commit OR sender_id NOT IN (SELECT user_id FROM user_tombstones))"
    return "TRUE"


def in_archive(
    connection: sqlite3.Connection, group_key: int, former: Horizon, current: Horizon
) -> Iterator[tuple[Part, bool]]:
    """Yield the parts of the archive with messages that ``former`` shows and ``current`` hides.

    With each part: whether all its messages were visible and become hidden.
    """
    for *part, is_whole in connection.execute(_PARTS, _values(group_key, former, current)).fetchall():
        yield Part(*part), bool(is_whole)


_PARTS = """
SELECT lifetime, span, first_seq, last_seq, oldest, newest, message_count, body_bytes,
    first_seq > :gone AND oldest >= :before
    AND (last_seq <= :new_gone OR (newest < :new_before AND last_seq <= :new_commits_above))
    AND NOT EXISTS (SELECT 1 FROM archive_senders JOIN user_tombstones ON user_id = sender_id
        WHERE archive_senders.group_key = :group_key)
    AND NOT EXISTS (SELECT 1 FROM taken_back WHERE taken_back.group_key = :group_key AND NOT erased
        AND sequence_num BETWEEN first_seq AND last_seq)
FROM archive_parts WHERE group_key = :group_key AND last_seq > :gone
    AND ((:new_gone > :gone AND first_seq <= :new_gone) OR (oldest < :new_before AND (
        (:new_before > :before AND newest >= :before)
        OR (:new_commits_above > :commits_above AND last_seq > :commits_above))))
ORDER BY first_seq
"""


def _values(group_key: int, former: Horizon, current: Horizon) -> dict[str, int]:
    values = {"group_key": group_key, "after": max(former.gone, former.border), **former._asdict()}
    return values | {f"new_{name}": value for name, value in current._asdict().items()}
