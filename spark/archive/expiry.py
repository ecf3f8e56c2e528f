"""Deletes from the archive what is due: planned from the database's index, without opening the table.

A partition of which nothing stays is deleted as a whole, by a change of the table's log alone. In other partitions
single rows are deleted, exactly. The rules and the marks are those of the hot store, and so is what withholds a message
from being erased. While what a user has sent is under a legal hold, no partition goes as a whole: the index does not
say who has sent what.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow
from pyspark.sql import DataFrame, SparkSession, functions as F

from conclave.failpoints import reach
from conclave.retention import rules
from conclave.retention.jobs import Scope
from conclave.retention.policy import FOREVER
from conclave.retention.rules import GOVERNED, HELD_SENDERS, UNHELD, Bounds
from conclave.store.archive import erasures, moves
from conclave.store.archive.erasures import Key
from conclave.store.archive.moves import PartRow
from conclave.store.engine.sqlite import Step, done
from conclave.store.resources import receipts
from conclave.store.resources.receipts import Erased
from spark.archive import columns as a
from spark.archive.table import Table, in_partitions
from spark.hot_store import ArchiveError, Hot

RESTORED = "restored"
"""The rule for messages that the hot store has again.

It serves them, so no client loses any message by this rule.
"""

RULES = tuple(each for each in rules.RULES if each not in rules.IN_ANY_RUN)
"""The rules by which messages go from the archive. No self-destructing message moves there."""

COUNTED = (*RULES, RESTORED)

SETTLED_AT_ONCE = 256
"""A step settles at most 256 groups for a deleted account; a transaction notes at most 256 rows of the index."""

_MARKS = f"""
CREATE TEMP TABLE archive_marks AS
WITH {GOVERNED}
SELECT group_key, 0 AS is_gone, gone_below, archived_seq,
    iif({{covered}}, cutoff, expired_before) AS cutoff, erasable_before, commits_above
FROM governed_groups AS governed
WHERE EXISTS (SELECT 1 FROM archive_parts WHERE archive_parts.group_key = governed.group_key)
UNION ALL
SELECT group_key, 1, 0, {FOREVER}, 0, erasable_before, {FOREVER} FROM governed_tombstones AS governed
WHERE EXISTS (SELECT 1 FROM archive_parts WHERE archive_parts.group_key = governed.group_key)
"""
"""What the run erases of each group: of one that it does not cover, only what is past a mark.

So what it leaves to another job has no condition that holds, also where a part is rewritten for other groups.
"""

_SENDERS = f"""
SELECT sender_id, group_key, erasable_before >
    (SELECT max(newest) FROM archive_parts WHERE archive_parts.group_key = archive_senders.group_key) AS is_all
FROM archive_senders JOIN user_tombstones ON user_id = sender_id JOIN temp.archive_marks USING (group_key)
WHERE {UNHELD}
"""
"""Deleted accounts with archived messages that may be erased, and whether all of them are old enough."""

_BOUNDS = Bounds(gone="gone_below", is_deleted="is_gone")

# A part with commits that are kept may have other messages too.
_DUE = f"""
WITH due AS (
    SELECT parts.*, is_gone, gone_below, cutoff, erasable_before, commits_above,
        first_seq > archived_seq AS is_restored, {rules.RULES[rules.FETCHED].whole(_BOUNDS)} AS is_fetched,
        {rules.whole_part(RULES, _BOUNDS)} AS is_over
    FROM archive_parts AS parts JOIN temp.archive_marks USING (group_key)
    WHERE first_seq > archived_seq OR {rules.some_of_part(RULES, _BOUNDS._replace(commits_above=""))}
        OR (group_key, lifetime, span) IN (SELECT group_key, lifetime, span FROM archive_erasures)
)
SELECT group_key, lifetime, span, message_count, last_seq, newest, is_gone, gone_below, cutoff, erasable_before,
    commits_above, is_restored OR is_over AS is_whole, is_restored, is_fetched
FROM due ORDER BY group_key, lifetime, span
"""
"""The rows of the index to look at: where something is due, and where a run that did not end may have erased something.

Of the latter nothing may be due any more, as under a legal hold that came later; but the index has to know.
"""


@dataclass
class ArchivePlan:
    """What goes from the archive.

    ``partitions``: these (lifetime, span) go as a whole. ``dropped``: their rows of the index, with what goes.
    ``partial``: rows of the index of which some messages go. ``groups``: by group key, the conditions for these
    messages, in the order of DUE. ``senders``: deleted accounts and the groups in which all that they have archived
    goes.
    """

    partitions: list[tuple[int, int]] = field(default_factory=list)
    dropped: dict[Key, Erased] = field(default_factory=dict)
    groups: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    partial: list[Key] = field(default_factory=list)
    senders: list[tuple[bytes, int]] = field(default_factory=list)

    @property
    def touched(self) -> list[tuple[int, int]]:
        """The partitions in which single rows go."""
        return sorted({(lifetime, span) for _, lifetime, span in self.partial})

    @property
    def group_keys(self) -> set[int]:
        """The groups in which something is due."""
        return {key[0] for key in (*self.dropped, *self.partial)}

    @property
    def is_unsure(self) -> bool:
        """Whether all that is due may be what users have sent who are under a legal hold."""
        return not (self.partitions or self.senders) and any(conditions[-1] for conditions in self.groups.values())

    def is_restored(self, key: Key) -> bool:
        """Tell whether the messages of a row of ``partial`` go only because the hot store has them again."""
        return bool(self.groups[key[0]][1])

    def __bool__(self) -> bool:
        return bool(self.partitions or self.partial or self.senders)


@dataclass(frozen=True)
class Measured:
    """For one row of the index: which messages go by each rule, and what is left (None: nothing)."""

    gone: list[Erased]
    left: PartRow | None

    @property
    def count(self) -> int:
        """How many messages the table has of the row."""
        return sum(each.messages for each in self.gone) + (self.left.message_count if self.left else 0)


def make_plan(
    connection: sqlite3.Connection, hot: Hot, scope: Scope, risen: Collection[tuple[int, int]] = ()
) -> ArchivePlan:
    """Plan from one snapshot of the hot store, after the run has raised the marks there.

    ``scope``: which groups belong to the run. ``risen``: pairs of a mark ``gone_below`` and a group key. A dry run
    gives those that it would have raised.
    """
    connection.execute(_MARKS.format(covered=scope.covered), {"now": hot.now})
    connection.execute("CREATE UNIQUE INDEX temp.archive_marks_by_group ON archive_marks (group_key)")
    connection.executemany("UPDATE temp.archive_marks SET gone_below = max(gone_below, ?) WHERE group_key = ?", risen)
    held = [row[0] for row in connection.execute(HELD_SENDERS)]
    senders: dict[int, list[bytes]] = defaultdict(list)
    plan = ArchivePlan()
    for sender_id, group_key, is_all in connection.execute(_SENDERS):
        senders[group_key].append(sender_id)
        if is_all:
            plan.senders.append((sender_id, group_key))
    due = connection.execute(_DUE).fetchall()
    if due:
        _divide(connection, due, plan, senders, held)
    return plan


def _divide(
    connection: sqlite3.Connection,
    due: list[sqlite3.Row],
    plan: ArchivePlan,
    senders: Mapping[int, list[bytes]],
    held: list[bytes],
) -> None:
    """Divide what is due into partitions that go as a whole, and those of which something stays."""
    whole = Counter((row["lifetime"], row["span"]) for row in due if row["is_whole"])
    stored = connection.execute("SELECT lifetime, span, count(*) FROM archive_parts GROUP BY lifetime, span")
    sizes = {(row[0], row[1]): row[2] for row in stored}
    plan.partitions = sorted(partition for partition, count in whole.items() if count == sizes[partition])
    dropped = set(plan.partitions)
    for row in due:
        key = (row["group_key"], row["lifetime"], row["span"])
        if key[1:] in dropped:
            plan.dropped[key] = Erased(_rule(row), row["message_count"], row["last_seq"], row["newest"])
        else:
            plan.partial.append(key)
            plan.groups[row["group_key"]] = (
                bool(row["is_gone"]),
                bool(row["is_restored"]),
                *(row["gone_below"], row["cutoff"], row["commits_above"], row["erasable_before"]),
                *(senders.get(row["group_key"], []), held),
            )


def _rule(row: sqlite3.Row) -> str:
    if row["is_gone"]:
        return rules.DELETED_GROUP
    if row["is_restored"]:
        return RESTORED
    return rules.FETCHED if row["is_fetched"] else rules.EXPIRED


_OF_ROW = Bounds(
    gone=a.GONE_BELOW,
    unheld=f"NOT array_contains({a.HELD}, {a.SENDER_ID})",
    by_deleted=f"array_contains({a.SENDERS}, {a.SENDER_ID})",
    is_deleted=a.IS_GONE,
)

_RULE_OF_ROW = (
    f"CASE WHEN {a.IS_RESTORED} THEN '{RESTORED}' WHEN {rules.may_go(_OF_ROW)} THEN {rules.named(RULES, _OF_ROW)} END"
)
"""Spark's expression for the rule by which a row of the table, joined with DUE, goes; null if it stays."""


class Expiry:
    """Carries out a plan in one table."""

    def __init__(self, spark: SparkSession, hot: Hot, table: Table) -> None:
        """Take what is needed; nothing is opened yet."""
        self._spark = spark
        self._hot = hot
        self._table = table

    def count(self, plan: ArchivePlan) -> Counter[str]:
        """Return how many messages would go by each rule. Reads the partitions that do not go as a whole."""
        counts = Counter(dict.fromkeys(COUNTED, 0))
        counts.update(_counts(plan, self._measure(plan)))
        return counts

    def changes_nothing(self, plan: ArchivePlan) -> bool:
        """Tell whether no message would go, and the index is right. Reads the partitions."""
        measured = self._measure(plan)
        known = {(part.group_key, part.lifetime, part.span): part for part in self._hot.read(moves.parts)}
        found = {key: each.left for key, each in measured.items() if not each.gone}
        return all(key in found and found[key] == known.get(key) for key in plan.partial)

    def apply(self, plan: ArchivePlan, counts: Counter[str]) -> None:
        """Delete what is planned, and bring the index up to date. Raises ArchiveError.

        The numbers of deleted messages are added to ``counts``, by rule.
        """
        left: dict[Key, PartRow | None] = dict.fromkeys((*plan.dropped, *plan.partial))
        first = self._table.version() + 1
        if plan.partitions:
            self._foresee({key: [gone] for key, gone in plan.dropped.items()})
            self._table.drop_partitions(plan.partitions)
            reach("archive.parts_dropped")
        measured = self._measure(plan)
        left |= {key: each.left for key, each in measured.items()}
        if plan.partial:
            self._note_ahead(plan, measured)
            reach("archive.erasures_noted")
        if expected := sum(gone.messages for each in measured.values() for gone in each.gone):
            deleted = self._delete_rows(plan)
            reach("archive.rows_deleted")
            if deleted != expected:
                raise ArchiveError(f"{deleted} messages were deleted from the archive where {expected} were due")
        self._table.make_durable(first)
        version = self._table.version()
        erased = {key: [gone] for key, gone in plan.dropped.items()} | {
            key: each.gone for key, each in measured.items()
        }
        self._hot.write_steps(lambda connection: settle(connection, left, plan.senders, version, erased))
        reach("archive.index_settled")
        counts.update(_counts(plan, measured))

    def _note_ahead(self, plan: ArchivePlan, measured: Mapping[Key, Measured]) -> None:
        """Note what is about to go row by row, after what a run has erased so that did not end."""
        present = dict.fromkeys(plan.partial, 0) | {key: each.count for key, each in measured.items()}

        def confirm(connection: sqlite3.Connection) -> Iterator[Step]:
            for key, gone in erasures.foreseen(connection).items():
                if key in present:
                    yield partial(done, erasures.confirm, connection, key, present[key], gone)

        self._hot.write_steps(confirm)
        self._foresee({key: each.gone for key, each in measured.items()})

    def _foresee(self, erasing: Mapping[Key, list[Erased]]) -> None:
        ahead = [(key, [gone for gone in each if gone.rule != RESTORED]) for key, each in erasing.items()]
        for at in range(0, len(ahead), SETTLED_AT_ONCE):
            self._hot.write(erasures.foresee, dict(ahead[at : at + SETTLED_AT_ONCE]))  # durable: the table is too

    def _measure(self, plan: ArchivePlan) -> dict[Key, Measured]:
        """Return for each row of the index in ``plan.partial`` that has messages: what goes and what stays."""
        if not plan.partial:
            return {}
        rule = F.expr(_RULE_OF_ROW)
        number, created = F.col(a.SEQUENCE_NUM), F.col(a.CREATED_AT)
        stays = rule.isNull()
        found = (
            self._table.read()
            .where(in_partitions(plan.touched))
            .where(F.col(a.GROUP_KEY).between(min(plan.groups), max(plan.groups)))
            .alias("messages")
            .join(self._due(plan), a.GROUP_KEY)
            .groupBy(a.GROUP_KEY, a.LIFETIME, a.SPAN)
            .agg(
                F.min(F.when(stays, number)),
                F.max(F.when(stays, number)),
                F.min(F.when(stays, created)),
                F.max(F.when(stays, created)),
                F.count(F.when(stays, number)),
                F.sum(F.when(stays, F.octet_length(a.BODY))),
                F.bit_xor(F.when(stays, F.col(a.CHECKSUM))),
                *[
                    aggregated
                    for each in COUNTED
                    for aggregated in (
                        F.count(F.when(rule == each, number)),
                        F.max(F.when(rule == each, number)),
                        F.max(F.when(rule == each, created)),
                    )
                ],
            )
        )
        planned = set(plan.partial)
        measured = {}
        for row in found.collect():
            key, left, gone = (row[0], row[1], row[2]), tuple(row)[:10], tuple(row)[10:]
            if key in planned:
                part = PartRow(*left) if row[7] else None
                of_rules = zip(COUNTED, gone[::3], gone[1::3], gone[2::3], strict=True)
                measured[key] = Measured([Erased(*each) for each in of_rules if each[1]], part)
        return measured

    def _delete_rows(self, plan: ArchivePlan) -> int:
        self._due(plan).createOrReplaceTempView("archive_due")
        try:
            merged = self._spark.sql(
                f"MERGE INTO {self._table.name} AS messages USING archive_due AS due"
                f" ON {in_partitions(plan.touched, 'messages.')} AND messages.{a.GROUP_KEY} = due.{a.GROUP_KEY}"
                f" AND messages.{a.GROUP_KEY} BETWEEN {min(plan.groups)} AND {max(plan.groups)}"
                f" AND {_RULE_OF_ROW} IS NOT NULL WHEN MATCHED THEN DELETE"
            )
            return int(merged.collect()[0]["num_deleted_rows"])
        finally:
            self._spark.catalog.dropTempView("archive_due")

    def _due(self, plan: ArchivePlan) -> DataFrame:
        rows = [(group_key, *conditions) for group_key, conditions in sorted(plan.groups.items())]
        columns = dict(zip(a.DUE.names, zip(*rows, strict=True), strict=True))
        return F.broadcast(self._spark.createDataFrame(pyarrow.table(columns, schema=a.DUE)))


def settle(
    connection: sqlite3.Connection,
    left: dict[Key, PartRow | None],
    senders: list[tuple[bytes, int]],
    version: int,
    erased: Mapping[Key, list[Erased]],
) -> Iterator[Step]:
    """Yield the steps that bring the index up to date with ``version`` of the table.

    ``left``: what is left of rows of the index, None for nothing. ``senders``: users and groups in which the archive
    has no more messages of theirs, except commits. ``erased``: what went, by rows of the index.
    """
    yield partial(done, moves.note_version, connection, version)
    rows_of: dict[int, dict[Key, PartRow | None]] = defaultdict(dict)
    for key, row in left.items():
        rows_of[key[0]][key] = row
    for group_key, rows in sorted(rows_of.items()):
        yield partial(
            done, _settle_group, connection, group_key, rows, [gone for key in rows for gone in erased.get(key, [])]
        )
    groups_of: dict[bytes, list[int]] = defaultdict(list)
    for sender_id, group_key in senders:
        groups_of[sender_id].append(group_key)
    for sender_id, group_keys in sorted(groups_of.items()):
        for at in range(0, len(group_keys), SETTLED_AT_ONCE):
            chosen = group_keys[at : at + SETTLED_AT_ONCE]
            yield partial(done, moves.forget_sender, connection, sender_id, chosen)


def _settle_group(
    connection: sqlite3.Connection, group_key: int, rows: Mapping[Key, PartRow | None], erased: list[Erased]
) -> None:
    for each in erased:
        if each.rule != RESTORED:
            receipts.note(connection, group_key, each)
    for key in rows:
        erasures.forget(connection, key)
    moves.settle_parts(connection, group_key, rows)


def _counts(plan: ArchivePlan, measured: Mapping[Key, Measured]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for gone in (*plan.dropped.values(), *(gone for each in measured.values() for gone in each.gone)):
        counts[gone.rule] += gone.messages
    return counts
