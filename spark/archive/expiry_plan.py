"""Plans what goes from the archive, from the database's index alone: without opening the table, and without Spark.

A partition of which nothing stays goes as a whole; of others, single rows. The rules and the marks are those of the hot
store, and so is what withholds a message from being erased. While what a user has sent is under a legal hold, no
partition goes as a whole: the index does not say who has sent what.

With ``rewrite_after`` a partition of which something stays may wait to be written anew, if all that is due in it can be
made unreadable before, see ``unreadable.py``.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from conclave.retention import rules
from conclave.retention.holds import HELD_SENDERS, UNHELD
from conclave.retention.jobs import Scope
from conclave.retention.policy import FOREVER
from conclave.retention.rules import GOVERNED, Bounds
from conclave.store import message_keys
from conclave.store.archive import erasures
from conclave.store.archive.erasures import Key, Told
from conclave.store.resources import taken_back
from conclave.store.resources.receipts import Erased
from spark.hot_store import Hot

RESTORED = "restored"
"""The rule for messages that the hot store has again.

It serves them, so no client loses any message by this rule.
"""

RULES = tuple(each for each in rules.RULES if each != rules.REDACTED)
"""The rules by which messages go from the archive. No self-destructing message moves there."""

COUNTED = (*RULES, RESTORED)

_MARKS = f"""
CREATE TEMP TABLE archive_marks AS
WITH {GOVERNED}
SELECT group_key, 0 AS is_gone, gone_below, archived_seq,
    iif({{covered}}, cutoff, expired_before) AS cutoff, {{erasable_before}} AS erasable_before, commits_above
FROM governed_groups AS governed
WHERE EXISTS (SELECT 1 FROM archive_parts WHERE archive_parts.group_key = governed.group_key)
UNION ALL
SELECT group_key, 1, 0, {FOREVER}, 0, {{erasable_before}}, {FOREVER} FROM governed_tombstones AS governed
WHERE EXISTS (SELECT 1 FROM archive_parts WHERE archive_parts.group_key = governed.group_key)
"""
"""What the run erases of each group: of one that it does not cover, only what is past a mark.

So what it leaves to another job has no condition that holds, also where a part is rewritten for other groups.
"""

_SENDERS = """
SELECT sender_id, group_key, erasable_before >
    (SELECT max(newest) FROM archive_parts WHERE archive_parts.group_key = archive_senders.group_key) AS is_all
FROM archive_senders JOIN user_tombstones ON user_id = sender_id JOIN temp.archive_marks USING (group_key)
WHERE {unheld}
"""
"""Deleted accounts with archived messages that may be erased, and whether all of them are old enough."""

_BOUNDS = Bounds(gone="gone_below", is_deleted="is_gone")

_FORESEEN = "(group_key, lifetime, span) IN (SELECT group_key, lifetime, span FROM archive_erasures)"
"""The condition for rows of the index of which a run that did not end may have erased something."""

# A part with commits that are kept may have other messages too.
_DUE = f"""
WITH due AS (
    SELECT archive_parts.*, is_gone, gone_below, cutoff, erasable_before, commits_above,
        first_seq > archived_seq AS is_restored, {rules.RULES[rules.FETCHED].whole(_BOUNDS)} AS is_fetched,
        {rules.whole_part(RULES, _BOUNDS)} AS is_over, since
    FROM archive_parts JOIN temp.archive_marks USING (group_key)
        LEFT JOIN archive_unreadable USING (group_key, lifetime, span)
    WHERE first_seq > archived_seq OR {{some}} OR {_FORESEEN}
)
SELECT group_key, lifetime, span, message_count, first_seq, last_seq, newest, is_gone, gone_below, cutoff,
    erasable_before, commits_above, is_restored OR is_over AS is_whole, is_restored, is_fetched,
    since, {_FORESEEN} AS is_foreseen,
    is_restored OR {_FORESEEN} OR EXISTS (SELECT 1 FROM readable_parts AS archive_parts
        WHERE archive_parts.group_key = due.group_key AND archive_parts.lifetime = due.lifetime
        AND archive_parts.span = due.span AND {{some}}) AS is_new
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
    messages, in the order of DUE but for HELD. ``held``: the users under a legal hold. ``senders``: deleted accounts
    and the groups in which all that they have archived goes. ``taken_back``: the numbers of messages that were taken
    back, by group key.

    ``told``: what receipts have told of already, when its keys were lost, by rows of ``dropped``. ``stale``: rows of
    which nothing else goes. ``waiting``: rows that are due and may be overwritten later; they are in none of the others
    but ``groups``. ``losing``: the groups with something in ``waiting`` that can be read still.
    """

    partitions: list[tuple[int, int]] = field(default_factory=list)
    dropped: dict[Key, Erased] = field(default_factory=dict)
    groups: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    partial: list[Key] = field(default_factory=list)
    held: list[bytes] = field(default_factory=list)
    senders: list[tuple[bytes, int]] = field(default_factory=list)
    taken_back: dict[int, list[int]] = field(default_factory=dict)
    told: dict[Key, Told] = field(default_factory=dict)
    stale: set[Key] = field(default_factory=set)
    waiting: set[Key] = field(default_factory=set)
    losing: set[int] = field(default_factory=set)

    @property
    def touched(self) -> list[tuple[int, int]]:
        """The partitions in which single rows go."""
        return sorted({(lifetime, span) for _, lifetime, span in self.partial})

    @property
    def group_keys(self) -> set[int]:
        """The groups in which something is due."""
        return {key[0] for key in (*self.dropped, *self.partial) if key not in self.stale}

    @property
    def is_unsure(self) -> bool:
        """Whether all that is due may be what users have sent who are under a legal hold."""
        return not (self.partitions or self.senders) and bool(self.groups and self.held)

    def is_restored(self, key: Key) -> bool:
        """Tell whether the messages of a row of ``partial`` go only because the hot store has them again."""
        return bool(self.groups[key[0]][1])

    def __bool__(self) -> bool:
        return bool(self.partitions or self.partial or self.senders)


def make_plan(
    connection: sqlite3.Connection,
    hot: Hot,
    scope: Scope,
    risen: Collection[tuple[int, int]] = (),
    rewrite_after: int = 0,
    *,
    despite_holds: bool = False,
) -> ArchivePlan:
    """Plan from one snapshot of the hot store, after the run has raised the marks there.

    ``scope``: which groups belong to the run. ``risen``: pairs of a mark ``gone_below`` and a group key. A dry run
    gives those that it would have raised. ``rewrite_after``: for how many seconds what is unreadable may wait.
    ``despite_holds``: plan what would go if there were no legal holds. Then too no partition goes as a whole while what
    a user has sent is under one.
    """
    erasable, unheld = ("old_enough_before", "TRUE") if despite_holds else ("erasable_before", UNHELD)
    connection.execute(_MARKS.format(covered=scope.covered, erasable_before=erasable), {"now": hot.now})
    connection.execute("CREATE UNIQUE INDEX temp.archive_marks_by_group ON archive_marks (group_key)")
    connection.executemany("UPDATE temp.archive_marks SET gone_below = max(gone_below, ?) WHERE group_key = ?", risen)
    held = [row[0] for row in connection.execute(HELD_SENDERS)]
    senders: dict[int, list[bytes]] = defaultdict(list)
    plan = ArchivePlan(held=held)
    for sender_id, group_key, is_all in connection.execute(_SENDERS.format(unheld=unheld)):
        senders[group_key].append(sender_id)
        if is_all:
            plan.senders.append((sender_id, group_key))
    some = rules.some_of_part(RULES, _BOUNDS._replace(commits_above="", **({"unheld": ""} if despite_holds else {})))
    due = connection.execute(_DUE.format(some=some)).fetchall()
    for group_key in {row["group_key"] for row in due}:
        if numbers := taken_back.of_group(connection, group_key):
            plan.taken_back[group_key] = numbers
    if due:
        _divide(connection, due, plan, senders)
        if rewrite_after and not held:
            _let_wait(due, plan, hot.now - rewrite_after)
    return plan


def _divide(
    connection: sqlite3.Connection,
    due: list[sqlite3.Row],
    plan: ArchivePlan,
    senders: Mapping[int, list[bytes]],
) -> None:
    """Divide what is due into partitions that go as a whole, and those of which something stays."""
    whole = Counter((row["lifetime"], row["span"]) for row in due if row["is_whole"])
    stored = connection.execute("SELECT lifetime, span, count(*) FROM archive_parts GROUP BY lifetime, span")
    dead = message_keys.lost_up_to(connection)
    sizes = {(row[0], row[1]): row[2] for row in stored}
    plan.partitions = sorted(partition for partition, count in whole.items() if count == sizes[partition])
    dropped = set(plan.partitions)
    for row in due:
        key = _key(row)
        if not row["is_new"]:
            plan.stale.add(key)
        if key[1:] in dropped:
            plan.dropped[key] = Erased(_rule(row), row["message_count"], row["last_seq"], row["newest"])
        else:
            plan.partial.append(key)
            plan.groups[row["group_key"]] = (
                bool(row["is_gone"]),
                bool(row["is_restored"]),
                *(row["gone_below"], row["cutoff"], row["commits_above"], row["erasable_before"]),
                dead.get(row["group_key"], 0),
                *(senders.get(row["group_key"], []), plan.taken_back.get(row["group_key"], [])),
            )
    plan.told = {key: each for key, each in erasures.told(connection).items() if key in plan.dropped}


def _let_wait(due: list[sqlite3.Row], plan: ArchivePlan, before: int) -> None:
    """Take from the plan what may be overwritten later. What waits since ``before`` may not, nor what lies beside it.

    A partition is written anew as a whole, so it waits only if all that is due in it does.
    """
    unable = {row["group_key"] for row in due if not _is_told_by_marks(row, plan)}
    partial = set(plan.partial)
    rows = [row for row in due if _key(row) in partial]
    pressing = {
        _key(row)[1:]
        for row in rows
        if (row["is_new"] and row["group_key"] in unable) or (row["since"] is not None and row["since"] <= before)
    }
    plan.waiting = {_key(row) for row in rows if _key(row)[1:] not in pressing}
    plan.partial = [key for key in plan.partial if key not in plan.waiting]
    plan.losing = {row["group_key"] for row in rows if row["is_new"] and _key(row) in plan.waiting}


def _is_told_by_marks(row: sqlite3.Row, plan: ArchivePlan) -> bool:
    """Tell whether marks, or its deletion, say of a group what goes, so that the least numbers do."""
    if row["is_restored"] or row["is_foreseen"]:
        return False
    if row["is_gone"]:
        return True
    *_, senders, taken = plan.groups.get(row["group_key"], ((), ()))
    is_taken = any(row["first_seq"] <= number <= row["last_seq"] for number in taken)
    return not senders and not is_taken and bool(row["last_seq"] <= row["commits_above"])


def _key(row: sqlite3.Row) -> Key:
    return row["group_key"], row["lifetime"], row["span"]


def _rule(row: sqlite3.Row) -> str:
    if row["is_gone"]:
        return rules.DELETED_GROUP
    if row["is_restored"]:
        return RESTORED
    return rules.FETCHED if row["is_fetched"] else rules.EXPIRED
