"""Deletes from the archive what is due, as ``expiry_plan.py`` has planned it.

A partition of which nothing stays is deleted as a whole, by a change of the table's log alone. In other partitions
single rows are deleted, exactly, by an Eraser.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import partial

from conclave.failpoints import reach
from conclave.store.archive import erasures, moves
from conclave.store.archive.erasures import Key
from conclave.store.archive.moves import PartRow
from conclave.store.engine.sqlite import Step, done
from conclave.store.resources import taken_back
from conclave.store.resources.receipts import OVERWRITTEN, Erased
from spark.archive import lost_keys
from spark.archive.eraser import Eraser, Living, Measured
from spark.archive.expiry_plan import COUNTED, RESTORED, ArchivePlan
from spark.archive.table import Table
from spark.hot_store import ArchiveError, Hot

SETTLED_AT_ONCE = 256
"""A step settles at most 256 groups for a deleted account; a transaction notes at most 256 rows of the index."""


class Expiry:
    """Carries out a plan in one table."""

    def __init__(self, eraser: Eraser, hot: Hot, table: Table) -> None:
        """Take what is needed; nothing is opened yet. ``eraser`` works on rows of the table."""
        self._eraser = eraser
        self._hot = hot
        self._table = table

    def count(self, plan: ArchivePlan) -> Counter[str]:
        """Return how many messages would go by each rule. Reads the partitions that do not go as a whole."""
        counts = Counter(dict.fromkeys(COUNTED, 0))
        counts.update(_counts(_erased(plan, self._eraser.measure(plan))))
        return counts

    def changes_nothing(self, plan: ArchivePlan) -> bool:
        """Tell whether no message would go, and the index is right. Reads the partitions."""
        measured = self._eraser.measure(plan)
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
            self._foresee(_erased(plan, {}))
            self._table.drop_partitions(plan.partitions)
            reach("archive.parts_dropped")
        measured = self._eraser.measure(plan)
        left |= {key: each.left for key, each in measured.items()}
        if plan.partial:
            self._note_ahead(plan, measured)
            reach("archive.erasures_noted")
        if expected := sum(gone.messages for each in measured.values() for gone in each.gone):
            deleted = self._eraser.delete(plan)
            reach("archive.rows_deleted")
            if deleted != expected:
                raise ArchiveError(f"{deleted} messages were deleted from the archive where {expected} were due")
        self._table.make_durable(first)
        version = self._table.version()
        erased = _erased(plan, measured)
        taken = _taken_back_gone(plan, measured)
        stays = lost_keys.living(self._eraser, self._hot, left, plan.dropped)
        self._hot.write_steps(lambda connection: settle(connection, left, plan.senders, version, erased, taken, stays))
        reach("archive.index_settled")
        counts.update(_counts(erased))

    def _note_ahead(self, plan: ArchivePlan, measured: Mapping[Key, Measured]) -> None:
        """Note what is about to go row by row, after what a run has erased so that did not end."""
        present = dict.fromkeys(plan.partial, 0) | {key: each.count for key, each in measured.items()}
        self._hot.write_steps(partial(confirm, present=present))
        erased = _erased(plan, measured)
        self._foresee({key: erased[key] for key in measured})

    def _foresee(self, erasing: Mapping[Key, list[Erased]]) -> None:
        ahead = [
            (key, [gone for gone in each if gone.rule != RESTORED and gone.messages]) for key, each in erasing.items()
        ]
        for at in range(0, len(ahead), SETTLED_AT_ONCE):
            self._hot.write(erasures.foresee, dict(ahead[at : at + SETTLED_AT_ONCE]))  # durable: the table is too


def confirm(connection: sqlite3.Connection, present: Mapping[Key, int]) -> Iterator[Step]:
    """Yield the steps that note for receipts what a run that did not end has erased.

    ``present``: how many messages the table has of rows of the index. Of others, what was noted stays noted.
    """
    for key, gone in erasures.foreseen(connection).items():
        if key in present:
            yield partial(done, erasures.confirm, connection, key, present[key], gone)


def settle(
    connection: sqlite3.Connection,
    left: dict[Key, PartRow | None],
    senders: list[tuple[bytes, int]],
    version: int,
    erased: Mapping[Key, list[Erased]],
    taken: Mapping[int, Collection[int]],
    stays: Living,
) -> Iterator[Step]:
    """Yield the steps that bring the index up to date with ``version`` of the table.

    ``left``: what is left of rows of the index, None for nothing. ``senders``: users and groups in which the archive
    has no more messages of theirs, except commits. ``erased``: what went, by rows of the index. ``taken``: by group
    key, the numbers of messages that were taken back and are not in these rows any more. ``stays``: see
    ``lost_keys.living``.
    """
    yield partial(done, moves.note_version, connection, version)
    rows_of: dict[int, dict[Key, PartRow | None]] = defaultdict(dict)
    for key, row in left.items():
        rows_of[key[0]][key] = row
    for group_key, rows in sorted(rows_of.items()):
        yield partial(done, _settle_group, connection, group_key, rows, erased, stays)
        if group_key in taken:
            parts = [key[1:] for key in rows]
            yield partial(done, taken_back.forget_erased, connection, group_key, taken[group_key], parts)
    groups_of: dict[bytes, list[int]] = defaultdict(list)
    for sender_id, group_key in senders:
        groups_of[sender_id].append(group_key)
    for sender_id, group_keys in sorted(groups_of.items()):
        for at in range(0, len(group_keys), SETTLED_AT_ONCE):
            chosen = group_keys[at : at + SETTLED_AT_ONCE]
            yield partial(done, moves.forget_sender, connection, sender_id, chosen)


def _settle_group(
    connection: sqlite3.Connection,
    group_key: int,
    rows: Mapping[Key, PartRow | None],
    erased: Mapping[Key, list[Erased]],
    stays: Living,
) -> None:
    for key in rows:
        erasures.tell(connection, key, [each for each in erased.get(key, ()) if each.rule != RESTORED])
    lost_keys.note(connection, group_key, rows, stays)
    for key in rows:
        erasures.forget(connection, key)
    moves.settle_parts(connection, group_key, rows)


def _taken_back_gone(plan: ArchivePlan, measured: Mapping[Key, Measured]) -> dict[int, set[int]]:
    """Return, by group key, the numbers that were taken back, and that no row of the plan has any more."""
    gone = {group_key: set(numbers) for group_key, numbers in plan.taken_back.items()}
    for (group_key, _, _), each in measured.items():
        gone.get(group_key, set()).difference_update(each.taken_back)
    return gone


def _erased(plan: ArchivePlan, measured: Mapping[Key, Measured]) -> dict[Key, list[Erased]]:
    """Return what goes, by rows of the index. What receipts have told of, when its keys were lost, is OVERWRITTEN."""
    dropped = {key: erasures.divided(each, plan.told.get(key)) for key, each in plan.dropped.items()}
    return dropped | {key: each.gone for key, each in measured.items()}


def _counts(erased: Mapping[Key, list[Erased]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for gone in (gone for each in erased.values() for gone in each if gone.rule != OVERWRITTEN):
        counts[gone.rule] += gone.messages
    return counts
