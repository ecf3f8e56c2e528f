"""Makes what is due in the archive unreadable before its files are written anew, which may be days later.

The plan says what may wait, see ``expiry_plan.py``. One look at numbers and times, without bodies and without Spark,
finds the messages; their keys are lost at once. What goes has the least numbers of its group in the archive, up to
which nothing is left that can be read. Where that is not so, as after a clock was set back, or where the table lacks
what the index counts, the files are written anew in the same run.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from conclave.archive.consistency import open_known
from conclave.archive.faults import one_line
from conclave.archive.layout import in_partitions
from conclave.archive.scan import batches, by_rows
from conclave.failpoints import reach
from conclave.keys.cover import Range
from conclave.retention import rules
from conclave.retention.rules import DELETED_GROUP, EXPIRED, FETCHED, Bounds
from conclave.store import message_keys
from conclave.store.archive import moves, unreadable
from conclave.store.archive.erasures import Key
from conclave.store.archive.moves import PartRow
from conclave.store.archive.unreadable import Left
from conclave.store.engine.sqlite import Step, done
from conclave.store.resources.receipts import Erased
from spark.archive.expiry_plan import ArchivePlan
from spark.hot_store import ArchiveError, Hot

GROUPS_AT_ONCE = 256
"""A query looks at 256 groups."""

_RULES = (DELETED_GROUP, FETCHED, EXPIRED)
"""The rules by which marks tell what goes, in the order in which they count."""

_BOUNDS = Bounds(
    gone="due.gone",
    cutoff="due.cutoff",
    commits_above="due.commits_above",
    erasable_before="due.erasable_before",
    unheld="",
    is_deleted="due.is_gone",
)

_RULE = (
    f"CASE WHEN sequence_num <= due.dead THEN 'told' WHEN {rules.may_go(_BOUNDS)}"
    f" THEN {rules.named(_RULES, _BOUNDS)} END"
)

_LOOK = """
SELECT group_key, lifetime, span, count(*) AS found, count(rule) AS dead,
    max(CASE WHEN rule IS NOT NULL THEN sequence_num END) AS last,
    min(CASE WHEN rule IS NULL THEN sequence_num END) AS first_left,
    min(CASE WHEN rule IS NULL THEN created_at END) AS oldest_left, {of_rules}
FROM (
    SELECT messages.group_key AS group_key, lifetime, span, sequence_num, created_at, {rule} AS rule
    FROM archive AS messages JOIN (VALUES {due})
        AS due (group_key, top, dead, is_gone, gone, cutoff, commits_above, erasable_before)
        ON messages.group_key = due.group_key
    WHERE {where} AND messages.group_key BETWEEN {least} AND {most} AND sequence_num <= due.top
) GROUP BY group_key, lifetime, span
"""
"""What is due of some groups. ``top``: the last number that the index has: what is on its way there does not count."""


@dataclass
class _Group:
    """A group with messages that go first. ``parts``: all that it has; ``due``: those in which something is."""

    parts: list[PartRow]
    due: set[Key]
    dead: int
    found: dict[Key, dict[str, Any]] = field(default_factory=dict)

    def last_dead(self) -> int:
        """Return up to which number nothing can be read."""
        return max([self.dead, *(row["last"] or 0 for row in self.found.values())])

    def is_whole(self) -> bool:
        """Tell whether the table has all that the index counts where something goes; what lacks may have to stay."""
        counted = {_key(part): part.message_count for part in self.parts}
        return all(key in self.found and self.found[key]["found"] == counted.get(key) for key in self.due)

    def is_in_order(self) -> bool:
        """Tell whether all that goes has lesser numbers than all that stays."""
        left = [row["first_left"] for row in self.found.values() if row["first_left"] is not None]
        left += [part.first_seq for part in self.parts if _key(part) not in self.due]
        return not left or self.last_dead() < min(left)


def note(hot: Hot, folder: Path, plan: ArchivePlan, counts: Counter[str], touched: set[int]) -> None:
    """Note the keys of ``plan.losing`` that are to be lost, for receipts too.

    ``folder``: of the table. How many messages become unreadable is added to ``counts``, by rule, and of which groups
    to ``touched``: so that is told also if the run ends halfway. Raises ArchiveError if the table cannot be read now;
    then nothing is noted.
    """
    groups = _look(hot, folder, plan)
    hot.write_steps(lambda connection: _steps(connection, groups, hot.now, counts, touched))
    reach("archive.unreadable_noted")


def _look(hot: Hot, path: Path, plan: ArchivePlan) -> dict[int, _Group]:
    """Return what goes of the groups of ``plan.losing``, and what is left. Raises ArchiveError."""
    import pyarrow  # noqa: PLC0415 - where nothing has to be looked at, it is not paid for
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

    groups = hot.read(_groups, plan)
    keys = sorted(groups)
    try:
        table, fault = open_known(path, hot.archive_state)
        if fault:
            raise ArchiveError(fault)
        query = by_rows(table)
        for at in range(0, len(keys), GROUPS_AT_ONCE):
            some = {key: groups[key] for key in keys[at : at + GROUPS_AT_ONCE]}
            for batch in batches(query, _query(some, plan)):
                for row in batch.to_pylist():
                    groups[row["group_key"]].found[row["group_key"], row["lifetime"], row["span"]] = row
    except (DeltaError, pyarrow.ArrowException, OSError) as error:
        raise ArchiveError(f"{path}: cannot be read: {one_line(error)}") from error
    return groups


def _groups(connection: sqlite3.Connection, plan: ArchivePlan) -> dict[int, _Group]:
    dead, due = message_keys.lost_up_to(connection), defaultdict[int, set[Key]](set)
    for key in (*plan.dropped, *plan.partial, *plan.waiting):
        due[key[0]].add(key)
    return {key: _Group(moves.parts(connection, key), due[key], dead.get(key, 0)) for key in plan.losing}


def _query(groups: Mapping[int, _Group], plan: ArchivePlan) -> str:
    values = []
    for key, group in groups.items():
        is_gone, _, gone, cutoff, commits_above, erasable_before, *_ = plan.groups[key]
        top = max(part.last_seq for part in group.parts)
        numbers = (gone, cutoff, commits_above, erasable_before)
        values.append(f"({key}, {top}, {group.dead}, {is_gone}, {', '.join(map(str, numbers))})")
    return _LOOK.format(
        rule=_RULE,
        due=", ".join(values),
        where=in_partitions({key[1:] for group in groups.values() for key in group.due}),
        least=min(groups),
        most=max(groups),
        of_rules=", ".join(
            f"count(CASE WHEN rule = '{each}' THEN 1 END) AS {each}_count,"
            f" max(CASE WHEN rule = '{each}' THEN sequence_num END) AS {each}_last,"
            f" max(CASE WHEN rule = '{each}' THEN created_at END) AS {each}_newest"
            for each in _RULES
        ),
    )


def _steps(
    connection: sqlite3.Connection,
    groups: Mapping[int, _Group],
    now: int,
    counts: Counter[str],
    touched: set[int],
) -> Iterator[Step]:
    for key, group in sorted(groups.items()):
        yield partial(done, _note, connection, key, group, now, counts, touched)


def _note(
    connection: sqlite3.Connection,
    group_key: int,
    group: _Group,
    now: int,
    counts: Counter[str],
    touched: set[int],
) -> None:
    """Note of one group what becomes unreadable, or that it cannot wait."""
    if not (group.is_whole() and group.is_in_order()):
        for key in group.due:
            unreadable.refuse(connection, key)
        return
    last = group.last_dead()
    for key in group.due:
        row = group.found[key]
        lost = _lost(row)
        left = Left(row["dead"], row["first_left"], row["oldest_left"])
        unreadable.note(connection, key, now, last, left, lost)
        counts.update({each.rule: each.messages for each in lost})
        if lost:
            touched.add(group_key)
    first = min(part.first_seq for part in group.parts)
    if first <= last:
        message_keys.note_ranges(connection, group_key, [Range(first, last)])


def _lost(row: Mapping[str, Any]) -> Sequence[Erased]:
    """Return what of a part becomes unreadable now, by rules."""
    return [
        Erased(each, row[f"{each}_count"], row[f"{each}_last"], row[f"{each}_newest"])
        for each in _RULES
        if row[f"{each}_count"]
    ]


def _key(part: PartRow) -> Key:
    return part.group_key, part.lifetime, part.span
