"""Which keys are to be lost with what an expiry has erased from the archive: all numbers of a part but what is left.

By what is left, not by what goes: so a run that ends in the middle needs no notes of its own. What has gone from the
table is missing there, and the index, which changes last, says where to look.
"""

import sqlite3
from collections.abc import Collection

from conclave.keys import ranges
from conclave.keys.cover import Range
from conclave.store import message_keys
from conclave.store.archive import moves
from conclave.store.archive.erasures import Key
from conclave.store.archive.moves import PartRow
from spark.archive.eraser import Eraser, Living
from spark.hot_store import Hot


def living(eraser: Eraser, hot: Hot, settled: Collection[Key], dropped: Collection[Key]) -> Living:
    """Return what the table still has between the first and the last numbers of ``settled``: rows of the index.

    ``dropped``: those whose partitions are gone as a whole.
    """
    gone, concerned = set(dropped), set(settled)
    by_group = hot.read(_parts_of, {key[0] for key in concerned})
    read: list[PartRow] = []
    for parts in by_group.values():
        bounds = [part for part in parts if _key(part) in concerned]
        read += [part for part in parts if _key(part) not in gone and any(_meet(part, each) for each in bounds)]
    if not read:
        return {}
    partitions = {(part.lifetime, part.span) for part in read}
    return eraser.living({part.group_key for part in read}, partitions)


def note(connection: sqlite3.Connection, group_key: int, settled: Collection[Key], left: Living) -> None:
    """Note the keys that are lost with rows of the index, which are about to be settled in this transaction.

    What the database has again, after a group was restored, keeps its keys.
    """
    concerned = set(settled)
    for part in moves.parts(connection, group_key):
        if _key(part) in concerned:
            rows = connection.execute(
                "SELECT sequence_num FROM messages WHERE group_key = ? AND sequence_num BETWEEN ? AND ?"
                " ORDER BY sequence_num",
                (group_key, part.first_seq, part.last_seq),
            )
            stays = ranges.joined([*left.get(group_key, ()), *ranges.of(row[0] for row in rows)])
            dead = ranges.without([Range(part.first_seq, part.last_seq)], stays)
            message_keys.note_ranges(connection, group_key, dead)


def _parts_of(connection: sqlite3.Connection, group_keys: Collection[int]) -> dict[int, list[PartRow]]:
    return {key: moves.parts(connection, key) for key in group_keys}


def _key(part: PartRow) -> Key:
    return part.group_key, part.lifetime, part.span


def _meet(one: PartRow, other: PartRow) -> bool:
    return one.first_seq <= other.last_seq and other.first_seq <= one.last_seq
