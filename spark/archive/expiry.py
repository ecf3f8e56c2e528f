"""Erases messages from the archive by the plan of ``expiry_plan.py``, or counts them, without changing its files.

One transaction for each part updates the index, and records the receipts and the keys to destroy. From then on, the
messages cannot be read. Their ciphertext stays until ``reclaim.py`` reclaims the space.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

from conclave.failpoints import reach
from conclave.keys.store import KeyStore
from conclave.retention.holds import HELD_GROUPS
from conclave.retention.jobs import ALL
from conclave.store import message_keys
from conclave.store.archive import moves, reclaiming
from conclave.store.archive.moves import PartRow
from conclave.store.engine.sqlite import Step, once
from conclave.store.resources import receipts, taken_back
from spark.archive import due_rows, expiry_plan
from spark.archive.due_rows import Measured
from spark.archive.expiry_plan import RULES, ArchivePlan
from spark.archive.living import Living, holds
from spark.hot_store import Hot

STEP_SIZE = 256
"""How many groups of a deleted account, and about how many parts, to process in one step."""


def count(hot: Hot, path: Path, plan: ArchivePlan, living: Living) -> Counter[str]:
    """Return how many messages each rule would erase. Raises ArchiveRunError."""
    counts = Counter(dict.fromkeys(RULES, 0))
    for each in due_rows.look(hot, path, plan, living):
        counts.update({erased.rule: erased.messages for erased in each.gone})
    return counts


def count_held(hot: Hot, path: Path, keys: Callable[[], KeyStore], risen: Collection[tuple[int, int]] = ()) -> int:
    """Return how many archived messages would be erased without legal holds.

    Parts that are due as a whole are counted by the index, other parts by their rows. ``path``: the table's folder.
    ``risen``: see ``due.count_held``. Raises ArchiveRunError.
    """
    held_groups, plan = hot.read(_plan_despite_holds, hot, risen)
    if not (held_groups or plan.held):
        return 0
    if not plan.held:  # only groups are held
        plan.parts = [part for part in plan.parts if part.group_key in held_groups]
    return due_rows.count_held(hot, path, plan, Living(hot, keys), held_groups)


def _plan_despite_holds(
    connection: sqlite3.Connection, hot: Hot, risen: Collection[tuple[int, int]]
) -> tuple[set[int], ArchivePlan]:
    held_groups = {row[0] for row in connection.execute(HELD_GROUPS)}
    return held_groups, expiry_plan.make_plan(connection, hot, ALL, risen, despite_holds=True)


def erase(hot: Hot, path: Path, plan: ArchivePlan, living: Living, counts: Counter[str], touched: set[int]) -> None:
    """Erase by ``plan``. ``path``: the folder of the table, which is only read. Raises ArchiveRunError.

    Adds the erased messages by rule to ``counts``, and their groups to ``touched``, even if the run is interrupted.
    Keys are only recorded; until they are destroyed, the rows that hide the messages stay.
    """
    measured: list[Measured] = []

    def settle() -> None:
        parts, measured[:] = list(measured), []
        _settle(hot, parts, counts, touched)

    try:
        for each in due_rows.look(hot, path, plan, living):
            measured.append(each)
            if len(measured) == STEP_SIZE:
                settle()
    finally:
        settle()
    reach("archive.erased_by_keys")


def forget(hot: Hot, plan: ArchivePlan, living: Living) -> None:
    """Delete the rows that hid messages without keys: withdrawals and senders.

    Call it after the plan is applied and the keys are destroyed. ``living``: finds the readable messages.
    Raises ArchiveRunError.
    """
    parts_of: dict[int, list[tuple[int, int]]] = defaultdict(list)
    erased: dict[int, set[int]] = defaultdict(set)
    for part in plan.parts:
        parts_of[part.group_key].append(part.key[1:])
        if numbers := {each for each in plan.taken_back(part.group_key) if part.first_seq <= each <= part.last_seq}:
            readable = living.of(part)
            erased[part.group_key] |= {each for each in numbers if not holds(readable, each)}

    def steps(connection: sqlite3.Connection) -> Iterator[Step]:
        for group_key, numbers in erased.items():
            yield partial(once, taken_back.forget_erased, connection, group_key, numbers, parts_of[group_key])
        yield from _forget_senders(connection, plan)

    hot.write_steps(steps)
    reach("archive.forgotten")


def settle_restored(hot: Hot, path: Path, living: Living) -> None:
    """Remove messages without keys from an index that was restored from a backup.

    Parts that cannot be read do not change. Raises ArchiveRunError for them.
    """
    recounted: list[tuple[PartRow, PartRow | None]] = []

    def write() -> None:
        parts, recounted[:] = list(recounted), []
        hot.write_steps(
            lambda connection: (partial(once, _store_recount, connection, hot.now, *each) for each in parts)
        )

    try:
        for each in due_rows.recount(hot, path, living):
            recounted.append(each)
            if len(recounted) == STEP_SIZE:
                write()
    finally:
        write()
    hot.write(reclaiming.note_settled)


def _store_recount(connection: sqlite3.Connection, now: int, part: PartRow, left: PartRow | None) -> None:
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
        counts.update({erased.rule: erased.messages for erased in each.gone})
        touched.add(each.part.group_key)


def _settle_part(connection: sqlite3.Connection, now: int, measured: Measured) -> None:
    part = measured.part
    for erased in measured.gone:
        receipts.note(connection, part.group_key, erased)
    message_keys.note_erased_ranges(connection, part.group_key, measured.numbers)
    reclaiming.note(connection, part.key[1:], sum(erased.messages for erased in measured.gone), now)
    moves.replace_parts(connection, part.group_key, {part.key: measured.left})
    reach("archive.part_erased")


def _forget_senders(connection: sqlite3.Connection, plan: ArchivePlan) -> Iterator[Step]:
    groups_of: dict[bytes, list[int]] = defaultdict(list)
    for sender_id, group_key in plan.senders:
        groups_of[sender_id].append(group_key)
    for sender_id, group_keys in sorted(groups_of.items()):
        for start in range(0, len(group_keys), STEP_SIZE):
            step_keys = group_keys[start : start + STEP_SIZE]
            yield partial(once, moves.forget_sender, connection, sender_id, step_keys)
