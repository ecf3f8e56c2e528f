"""What a run is about to erase from the archive, noted before, so that a crash loses no receipt.

The archive's table changes at once, and the index later. Until then the index still counts what has gone. So if a row
of the index counts more messages than the table has, what was noted has gone; otherwise it never went.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from conclave.store.engine.sqlite import values
from conclave.store.resources import receipts
from conclave.store.resources.receipts import OVERWRITTEN, Erased

Key = tuple[int, int, int]
"""A row of the index: group key, lifetime, span."""

_OF_ROW = "WHERE group_key = ? AND lifetime = ? AND span = ?"


def foresee(connection: sqlite3.Connection, erasing: Mapping[Key, Iterable[Erased]]) -> None:
    """Note what is about to be erased, in the place of what was noted of the same rows of the index."""
    for key, gone in erasing.items():
        forget(connection, key)
        connection.executemany(
            "INSERT INTO archive_erasures (group_key, lifetime, span, rule, messages, last_seq, newest)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(*key, *values(each)) for each in gone],
        )


def foreseen(connection: sqlite3.Connection) -> dict[Key, list[Erased]]:
    """Return what is noted, by rows of the index."""
    found: dict[Key, list[Erased]] = defaultdict(list)
    for row in connection.execute(
        "SELECT group_key, lifetime, span, rule, messages, last_seq, newest FROM archive_erasures"
    ):
        found[row[0], row[1], row[2]].append(Erased(*tuple(row)[3:]))
    return dict(found)


def confirm(connection: sqlite3.Connection, key: Key, left: int, gone: Collection[Erased]) -> None:
    """Note for receipts what a run that did not end has erased, if the table has only ``left`` messages of a row.

    ``gone``: what was noted before. The index does not count it any more. Repeating it does no harm.
    """
    counted = connection.execute(f"SELECT message_count FROM archive_parts {_OF_ROW}", key).fetchone()
    if counted and counted[0] > left and forget(connection, key):
        tell(connection, key, gone)
        connection.execute(f"UPDATE archive_parts SET message_count = ? {_OF_ROW}", (left, *key))


def forget(connection: sqlite3.Connection, key: Key) -> bool:
    """Forget what is noted of a row of the index; tell whether there was anything."""
    return connection.execute(f"DELETE FROM archive_erasures {_OF_ROW}", key).rowcount > 0


@dataclass(frozen=True)
class Told:
    """What of a part waits to be overwritten: how many messages, of which receipts have told, and their last number."""

    messages: int
    last_seq: int


def told(connection: sqlite3.Connection) -> dict[Key, Told]:
    """Return what waits to be overwritten, by rows of the index."""
    rows = connection.execute(
        "SELECT group_key, lifetime, span, dead_messages, dead_up_to FROM archive_unreadable WHERE dead_messages > 0"
    )
    return {(row[0], row[1], row[2]): Told(row[3], row[4]) for row in rows}


def divided(gone: Erased, told: Told | None) -> list[Erased]:
    """Return what goes with a whole part, without what receipts have told of: that is overwritten, and nothing else."""
    if told is None:
        return [gone]
    known = min(told.messages, gone.messages)
    rest = replace(gone, messages=gone.messages - known)
    return [rest, Erased(OVERWRITTEN, known, told.last_seq, gone.newest)]


def tell(connection: sqlite3.Connection, key: Key, gone: Iterable[Erased]) -> None:
    """Note for receipts what has gone from a part."""
    for each in gone:
        if each.rule == OVERWRITTEN:
            connection.execute(
                f"UPDATE archive_unreadable SET dead_messages = max(0, dead_messages - ?) {_OF_ROW}",
                (each.messages, *key),
            )
        if each.messages:  # a run that ended early may have told of all of them
            keys_lost = 0 if each.rule == OVERWRITTEN else each.messages
            receipts.note(connection, key[0], each, keys_lost)
