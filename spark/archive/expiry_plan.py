"""Plans the erasure of archived messages, from the database's index alone.

If the index shows that all messages of a part are due, the part is erased as a whole. Otherwise the table must be read.
Rules, marks and legal holds are those of the hot store. While a user is under a legal hold, no part is planned as a
whole, since the index does not record the sender of each message.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from conclave.retention import rules
from conclave.retention.holds import HELD_SENDERS, UNHELD
from conclave.retention.jobs import Scope
from conclave.retention.policy import FOREVER
from conclave.retention.rules import GOVERNED, Bounds
from conclave.store.archive import moves
from conclave.store.archive.moves import PartRow
from conclave.store.resources import taken_back
from conclave.store.resources.receipts import ErasedMessages
from spark.hot_store import Hot

RULES = tuple(each for each in rules.RULES if each != rules.REDACTED)
"""The rules that apply to the archive, by precedence. It has no self-destructing messages."""

_MARKS = f"""
CREATE TEMP TABLE archive_marks AS
WITH {GOVERNED}
SELECT group_key, 0 AS is_gone, gone_below,
    iif({{covered}}, cutoff, expired_before) AS cutoff, {{erasable_before}} AS erasable_before, commits_above
FROM governed_groups AS governed
WHERE EXISTS (SELECT 1 FROM archive_parts WHERE archive_parts.group_key = governed.group_key)
UNION ALL
SELECT group_key, 1, 0, 0, {{erasable_before}}, {FOREVER} FROM governed_tombstones AS governed
WHERE EXISTS (SELECT 1 FROM archive_parts WHERE archive_parts.group_key = governed.group_key)
"""
"""The bounds of the run for each group. In groups that it does not cover, it erases only messages past a mark."""

_SENDERS = """
SELECT sender_id, group_key, erasable_before >
    (SELECT max(newest) FROM archive_parts WHERE archive_parts.group_key = archive_senders.group_key) AS is_all
FROM archive_senders JOIN user_tombstones ON user_id = sender_id JOIN temp.archive_marks USING (group_key)
WHERE {unheld}
"""
"""Deleted accounts with archived messages that may be erased, and whether all of them are old enough."""

_BOUNDS = Bounds(gone="gone_below", is_deleted="is_gone")

_NAMES = moves.PART_COLUMNS.split(", ")

# A part with commits that are kept may have other messages too.
_DUE = f"""
SELECT {", ".join(f"archive_parts.{name}" for name in _NAMES)},
    is_gone, gone_below, cutoff, commits_above, erasable_before,
    {rules.RULES[rules.FETCHED].whole(_BOUNDS)} AS is_fetched, {rules.whole_part(RULES, _BOUNDS)} AS is_whole
FROM archive_parts JOIN temp.archive_marks USING (group_key)
WHERE {{some}} ORDER BY group_key, lifetime, span
"""
"""The parts with due messages."""


@dataclass
class ArchivePlan:
    """The archived messages to erase. ``parts``: the parts that may have due messages.

    ``whole``: the parts to erase as a whole, by group key, lifetime and span. ``groups``: for other parts, by group
    key: the bounds in the order of ``due_rows.MARKS``, the deleted senders, and the taken back numbers. ``held``: the
    users under a legal hold. ``senders``: deleted accounts, with the groups in which all their messages are erased.
    """

    parts: list[PartRow] = field(default_factory=list)
    whole: dict[moves.Key, ErasedMessages] = field(default_factory=dict)
    groups: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    held: list[bytes] = field(default_factory=list)
    senders: list[tuple[bytes, int]] = field(default_factory=list)

    @property
    def partial(self) -> list[PartRow]:
        """The parts that require reading the table."""
        return [part for part in self.parts if part.key not in self.whole]

    def taken_back(self, group_key: int) -> Collection[int]:
        """Return the numbers that were taken back."""
        numbers: Collection[int] = self.groups[group_key][-1]
        return numbers

    def __bool__(self) -> bool:
        return bool(self.parts or self.senders)


def make_plan(
    connection: sqlite3.Connection,
    hot: Hot,
    scope: Scope,
    risen: Collection[tuple[int, int]] = (),
    *,
    despite_holds: bool = False,
) -> ArchivePlan:
    """Plan from one snapshot of the hot store, after the run has raised the marks there.

    ``risen``: the marks ``gone_below`` that a dry run would raise, each with a group key.
    ``despite_holds``: plan as if there were no legal holds, but no parts as a whole while a user is under one.
    """
    erasable, unheld = ("old_enough_before", "TRUE") if despite_holds else ("erasable_before", UNHELD)
    connection.execute(_MARKS.format(covered=scope.covered, erasable_before=erasable), {"now": hot.now})
    connection.execute("CREATE UNIQUE INDEX temp.archive_marks_by_group ON archive_marks (group_key)")
    connection.executemany("UPDATE temp.archive_marks SET gone_below = max(gone_below, ?) WHERE group_key = ?", risen)
    senders: dict[int, list[bytes]] = defaultdict(list)
    plan = ArchivePlan(held=[row[0] for row in connection.execute(HELD_SENDERS)])
    for sender_id, group_key, is_all in connection.execute(_SENDERS.format(unheld=unheld)):
        senders[group_key].append(sender_id)
        if is_all:
            plan.senders.append((sender_id, group_key))
    may_be_due = rules.some_of_part(
        RULES, _BOUNDS._replace(commits_above="", **({"unheld": ""} if despite_holds else {}))
    )
    for row in connection.execute(_DUE.format(some=may_be_due)).fetchall():
        part = PartRow(*tuple(row)[: len(_NAMES)])
        plan.parts.append(part)
        if part.group_key not in plan.groups:
            marks = (bool(row["is_gone"]), *(row[name] for name in ("gone_below", "cutoff", "commits_above")))
            numbers = taken_back.of_group(connection, part.group_key)
            plan.groups[part.group_key] = (*marks, row["erasable_before"], senders[part.group_key], numbers)
        if row["is_whole"]:
            plan.whole[part.key] = ErasedMessages(_rule(row), part.message_count, part.last_seq, part.newest)
    _remove_overlapping(connection, plan)
    return plan


def _remove_overlapping(connection: sqlite3.Connection, plan: ArchivePlan) -> None:
    """Remove from ``plan.whole`` the parts whose numbers overlap with other parts, for example after a clock change."""
    whole_parts: dict[int, list[PartRow]] = defaultdict(list)
    for part in plan.parts:
        if part.key in plan.whole:
            whole_parts[part.group_key].append(part)
    for group_key, group_parts in whole_parts.items():
        others = [part for part in moves.parts(connection, group_key) if part.key not in plan.whole]
        for part in group_parts:
            if any(each.first_seq <= part.last_seq and part.first_seq <= each.last_seq for each in others):
                del plan.whole[part.key]


def _rule(row: sqlite3.Row) -> str:
    if row["is_gone"]:
        return rules.DELETED_GROUP
    return rules.FETCHED if row["is_fetched"] else rules.EXPIRED
