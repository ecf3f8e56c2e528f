"""Erases from the archive what is due, as ``expiry_plan.py`` has planned it, without touching its files.

In one transaction for each part, the index leaves the messages out, receipts are noted, and so are the keys to destroy:
from then on nothing can read them. Their ciphertext stays until ``reclaim.py`` gives its space back.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from conclave.failpoints import reach
from conclave.store import message_keys
from conclave.store.archive import moves, reclaiming
from conclave.store.archive.moves import PartRow
from conclave.store.engine.sqlite import Step, once
from conclave.store.resources import receipts, taken_back
from spark.archive import due_rows
from spark.archive.due_rows import Measured
from spark.archive.expiry_plan import RULES, ArchivePlan
from spark.archive.living import Living, holds
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
    halfway. The keys are noted to be destroyed, no more: until that is done, what hides the messages stays.
    """
    measured: list[Measured] = []

    def settle() -> None:
        some, measured[:] = list(measured), []
        _settle(hot, some, counts, touched)

    try:
        for each in due_rows.look(hot, path, plan, living):
            measured.append(each)
            if len(measured) == SETTLED_AT_ONCE:
                settle()
    finally:
        settle()
    reach("archive.erased_by_keys")


def forget(hot: Hot, plan: ArchivePlan, living: Living) -> None:
    """Forget what has hidden messages that have no keys any more: that they were taken back, or who had sent them.

    Call it once all that was planned is erased, and its keys are destroyed. ``living``: as of now. Raises ArchiveError.
    """
    parts_of: dict[int, list[tuple[int, int]]] = defaultdict(list)
    dead: dict[int, set[int]] = defaultdict(set)
    for part in plan.parts:
        parts_of[part.group_key].append(part.key[1:])
        if numbers := {each for each in plan.taken_back(part.group_key) if part.first_seq <= each <= part.last_seq}:
            alive = living.of(part)
            dead[part.group_key] |= {each for each in numbers if not holds(alive, each)}

    def steps(connection: sqlite3.Connection) -> Iterator[Step]:
        for group_key, numbers in dead.items():
            yield partial(once, taken_back.forget_erased, connection, group_key, numbers, parts_of[group_key])
        yield from _forget_senders(connection, plan)

    hot.write_steps(steps)
    reach("archive.forgotten")


def settle_restored(hot: Hot, path: Path, living: Living) -> None:
    """Have the index count no message whose key is lost: it was restored from a backup, and they were erased since.

    Raises ArchiveError for what cannot be read: that stays as it is.
    """
    waiting: list[tuple[PartRow, PartRow | None]] = []

    def write() -> None:
        some, waiting[:] = list(waiting), []
        hot.write_steps(lambda connection: (partial(once, _recounted, connection, hot.now, *each) for each in some))

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
        moves.replace_parts(connection, part.group_key, {part.key: left})
        lost = part.message_count - (left.message_count if left else 0)
        if lost:
            reclaiming.note(connection, part.key[1:], lost, now)


def _settle(hot: Hot, measured: list[Measured], counts: Counter[str], touched: set[int]) -> None:
    def steps(connection: sqlite3.Connection) -> Iterator[Step]:
        for each in measured:
            yield partial(once, _settle_part, connection, hot.now, each)

    hot.write_steps(steps)
    for each in measured:
        counts.update({gone.rule: gone.messages for gone in each.gone})
        touched.add(each.part.group_key)


def _settle_part(connection: sqlite3.Connection, now: int, measured: Measured) -> None:
    part = measured.part
    for gone in measured.gone:
        receipts.note(connection, part.group_key, gone)
    message_keys.note_erased_ranges(connection, part.group_key, measured.numbers)
    reclaiming.note(connection, part.key[1:], sum(gone.messages for gone in measured.gone), now)
    moves.replace_parts(connection, part.group_key, {part.key: measured.left})
    reach("archive.part_erased")


def _forget_senders(connection: sqlite3.Connection, plan: ArchivePlan) -> Iterator[Step]:
    groups_of: dict[bytes, list[int]] = defaultdict(list)
    for sender_id, group_key in plan.senders:
        groups_of[sender_id].append(group_key)
    for sender_id, group_keys in sorted(groups_of.items()):
        for at in range(0, len(group_keys), SETTLED_AT_ONCE):
            yield partial(once, moves.forget_sender, connection, sender_id, group_keys[at : at + SETTLED_AT_ONCE])
