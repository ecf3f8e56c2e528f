"""Counts what becomes hidden of a group: the messages that its horizon of one moment shows, and that of another hides.

In the hot store each message is looked at, in the archive the index alone. Where only a part of what a partition has
goes, the archive itself has to count it, see ``Sought``.
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
    """What is hidden of a group at one moment."""

    gone: int
    """Messages up to this number, inclusive."""
    before: int
    """Messages created before this Unix second, exclusive, but for kept commits."""
    commits_above: int
    """Commits with greater numbers are kept; FOREVER: none is."""
    border: int
    """Messages up to this number, inclusive, are in the archive."""

    def is_kept(self, above: str) -> str:
        """Return the SQL condition for kept commits. ``above``: what stands for ``commits_above`` in it."""
        return "FALSE" if self.commits_above == FOREVER else is_kept(above)


@dataclass(frozen=True)
class Amount:
    """Some messages."""

    messages: int = 0
    body_bytes: int = 0
    """0 if they were not measured."""
    oldest: int = 0
    """When the oldest was created, Unix seconds; 0 without messages. So is ``newest`` for the newest."""
    newest: int = 0
    held: int = 0
    """How many of them a legal hold covers, as far as that was asked."""
    young: int = 0
    """How many others are not old enough to be erased, as far as that was asked."""

    def __add__(self, other: "Amount") -> "Amount":
        """Return both together."""
        return Amount(
            self.messages + other.messages,
            self.body_bytes + other.body_bytes,
            min((each.oldest for each in (self, other) if each.messages), default=0),
            max(self.newest, other.newest),
            self.held + other.held,
            self.young + other.young,
        )


NOTHING = Amount()


@dataclass(frozen=True)
class Sums:
    """What is asked of messages: the values of Amount, but for the bytes."""

    held: str = "FALSE"
    """The SQL condition for those that a legal hold covers."""
    erasable_before: int = FOREVER
    """Those created before this Unix second are old enough to be erased."""

    @property
    def sql(self) -> str:
        """What to select, in the hot store or in the archive."""
        young = "FALSE"
        if self.erasable_before < FOREVER:
            young = f"NOT ({self.held}) AND created_at >= {self.erasable_before:d}"
        return (
            "count(*) AS messages, min(created_at) AS oldest, max(created_at) AS newest,"
            f" sum(CASE WHEN {self.held} THEN 1 ELSE 0 END) AS held, sum(CASE WHEN {young} THEN 1 ELSE 0 END) AS young"
        )

    @staticmethod
    def amount(row: Iterable[Any], body_bytes: int = 0) -> Amount:
        """Return what was selected. ``row``: the values of ``sql``."""
        messages, *others = row
        return Amount(messages, body_bytes, *others) if messages else NOTHING


ALL = Sums()
"""Sums of messages of which it does not matter whether they may be erased."""


@dataclass(frozen=True)
class Sought:
    """What only the archive itself can tell: how many messages of ``stretch`` are hidden by ``horizon``."""

    stretch: Stretch
    horizon: Horizon
    sums: Sums


def horizons(
    connection: sqlite3.Connection, group_keys: Collection[int], now: int, gone: str = "gone"
) -> dict[int, Horizon]:
    """Return what is hidden of groups at the Unix second ``now``, by key.

    ``gone``: the column of GOVERNED that tells which numbers are; by default, the next run counts as done.
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
    sums: Sums = ALL,
    *,
    where: str = "TRUE",
    now: int = 0,
    is_measured: bool = False,
) -> Amount:
    """Count the messages of the hot store that ``former`` shows and ``current``, which hides no less, does not.

    ``where``: an SQL condition for those that count, which may name the second ``:now``. ``is_measured``: bytes
    are counted too; that takes much longer.
    """
    values = _values(group_key, former, current) | {"now": now}
    found = NOTHING
    for condition in _newly_hidden(former, current):
        chosen = f"FROM messages WHERE group_key = :group_key AND {condition} AND {where}"
        amount = sums.amount(connection.execute(f"SELECT {sums.sql} {chosen}", values).fetchone())
        if is_measured and amount.messages:
            amount += Amount(0, connection.execute(f"SELECT sum(size) {chosen}", values).fetchone()[0])
        found += amount
    return found


def _newly_hidden(former: Horizon, current: Horizon) -> Iterator[str]:
    """Yield conditions: by age; by number; commits that were kept and are not any more. No message meets two of them.

    Each is a range of one index; the plus signs keep SQLite from taking another. If no commit is kept, it tells all.
    """
    was_kept, is_kept_now = former.is_kept(":commits_above"), current.is_kept(":new_commits_above")
    if current.before > former.before:
        aged = "created_at >= :before AND created_at < :new_before AND +sequence_num > :after"
        yield aged if is_kept_now == "FALSE" else f"{aged} AND NOT {is_kept_now}"
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


def served_of(connection: sqlite3.Connection) -> str:
    """Return the condition for messages that no deleted account has sent, and for commits."""
    if connection.execute("SELECT 1 FROM user_tombstones").fetchone():
        return "(is_commit OR sender_id NOT IN (SELECT user_id FROM user_tombstones))"
    return "TRUE"


def in_archive(
    connection: sqlite3.Connection, group_key: int, former: Horizon, current: Horizon
) -> Iterator[tuple[Part, bool]]:
    """Yield the parts of the archive in which messages become hidden, and whether all that they have were shown and do.

    See ``in_hot_store``.
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
