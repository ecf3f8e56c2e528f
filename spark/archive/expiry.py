"""Erases from the archive what is due, as ``expiry_plan.py`` has planned it, without touching its files.

In one transaction for each part, the index leaves the messages out, receipts are noted, and so are the keys to destroy:
from then on nothing can read them. Their ciphertext stays until ``reclaim.py`` gives its space back.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

from conclave.failpoints import reach
from conclave.store import message_keys
from conclave.store.archive import moves, reclaiming
from conclave.store.archive.moves import PartRow
from conclave.store.engine.sqlite import Step, done
from conclave.store.resources import receipts, taken_back
from spark.archive import due_rows
from spark.archive.due_rows import Measured
from spark.archive.expiry_plan import RULES, ArchivePlan
from spark.archive.living import Living
from spark.hot_store import Hot

SETTLED_AT_ONCE = 256
"""A step settles at most 256 groups for a deleted account, and about 256 parts."""


def count(hot: Hot, path: Path, plan: ArchivePlan, living: Living) -> Counter[str]:
    """Return how many messages would go by each rule. Raises ArchiveError."""
    counts = Counter(dict.fromkeys(RULES, 0))
    for each in due_rows.look(hot, path, plan, living):
        counts.update({gone.rule: gone.messages for gone in each.gone})
    return counts


def erase(hot: Hot, path: Path, plan: ArchivePlan, living: Living, counts: Counter[str], touched: set[int]) -> None:
    """Erase what is planned. ``path``: of the table, which is only read. Raises ArchiveError.

    How many messages go is added to ``counts``, by rule, and of which groups to ``touched``: also if the run ends
    halfway. The keys are noted to be destroyed, no more.
    """
    measured: list[Measured] = []
    try:
        for each in due_rows.look(hot, path, plan, living):
            measured.append(each)
            if len(measured) == SETTLED_AT_ONCE:
                _settle(hot, plan, measured, counts, touched)
                measured = []
    finally:
        _settle(hot, plan, measured, counts, touched)
    hot.write_steps(lambda connection: _forget_senders(connection, plan))
    reach("archive.erased_by_keys")


def settle_restored(hot: Hot, path: Path, living: Living) -> None:
    """Have the index count no message whose key is lost: it was restored from a backup, and they were erased since.

    Raises ArchiveError for what cannot be read: that stays as it is.
    """
    waiting: list[tuple[PartRow, PartRow | None]] = []

    def write() -> None:
        some, waiting[:] = list(waiting), []
        hot.write_steps(lambda connection: (partial(done, _recounted, connection, hot.now, *each) for each in some))

    try:
        for each in due_rows.recount(hot, path, living):
            waiting.append(each)
            if len(waiting) == SETTLED_AT_ONCE:
                write()
    finally:
        write()
    hot.write(reclaiming.note_settled)


def _recounted(connection: sqlite3.Connection, now: int, part: PartRow, left: PartRow | None) -> None:
    if left != part:
        moves.settle_parts(connection, part.group_key, {part.key: left})
        lost = part.message_count - (left.message_count if left else 0)
        if lost:
            reclaiming.note(connection, part.key[1:], lost, now)


def _settle(hot: Hot, plan: ArchivePlan, measured: list[Measured], counts: Counter[str], touched: set[int]) -> None:
    def steps(connection: sqlite3.Connection) -> Iterator[Step]:
        for each in measured:
            yield partial(done, _settle_part, connection, hot.now, plan, each)

    hot.write_steps(steps)
    for each in measured:
        counts.update({gone.rule: gone.messages for gone in each.gone})
        touched.add(each.part.group_key)


def _settle_part(connection: sqlite3.Connection, now: int, plan: ArchivePlan, measured: Measured) -> None:
    part = measured.part
    for gone in measured.gone:
        receipts.note(connection, part.group_key, gone)
    message_keys.note_ranges(connection, part.group_key, measured.numbers)
    reclaiming.note(connection, part.key[1:], sum(gone.messages for gone in measured.gone), now)
    moves.settle_parts(connection, part.group_key, {part.key: measured.left})
    if taken := _among(plan.taken_back(part.group_key), measured):
        taken_back.forget_erased(connection, part.group_key, taken, [part.key[1:]])
    reach("archive.part_erased")


def _among(numbers: Collection[int], measured: Measured) -> list[int]:
    return [number for number in numbers if any(first <= number <= last for first, last in measured.numbers)]


def _forget_senders(connection: sqlite3.Connection, plan: ArchivePlan) -> Iterator[Step]:
    groups_of: dict[bytes, list[int]] = defaultdict(list)
    for sender_id, group_key in plan.senders:
        groups_of[sender_id].append(group_key)
    for sender_id, group_keys in sorted(groups_of.items()):
        for at in range(0, len(group_keys), SETTLED_AT_ONCE):
            yield partial(done, moves.forget_sender, connection, sender_id, group_keys[at : at + SETTLED_AT_ONCE])
