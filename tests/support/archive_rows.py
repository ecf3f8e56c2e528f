"""Messages of the archive's table, and plans for them, without a database."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import pyarrow

from conclave.keys.tree import Range
from conclave.retention.policy import FOREVER
from conclave.store.archive.moves import ArchiveState, Key, PartRow
from spark.archive import columns as a, due_rows
from spark.archive.due_rows import Measured
from spark.archive.expiry_plan import ArchivePlan
from spark.archive.living import Living
from spark.archive.table import Table
from spark.hot_store import Hot

USERS = [bytes([number]) * 16 for number in range(1, 5)]
SPAN = 0


def messages(group_keys: Iterable[int], count: int = 10, *, span: int = SPAN, size: int = 100) -> pyarrow.Table:
    """Number n was sent at the second 1000 + n by user n % 4; every fifth is a commit."""
    names = [(key, number) for key in group_keys for number in range(1, count + 1)]
    rows = pyarrow.table(
        {
            a.LIFETIME: [-1] * len(names),
            a.SPAN: [span] * len(names),
            a.GROUP_KEY: [key for key, _ in names],
            a.SEQUENCE_NUM: [number for _, number in names],
            a.SENDER_ID: [USERS[number % 4] for _, number in names],
            a.IS_COMMIT: [number % 5 == 0 for _, number in names],
            a.CREATED_AT: [1000 + number for _, number in names],
            a.CHECKSUM: [0] * len(names),
            a.SIZE: [size] * len(names),
            a.BODY: [os.urandom(size) for _ in names],
        },
        a.ARCHIVE,
    )
    return rows.set_column(rows.column_names.index(a.CHECKSUM), a.CHECKSUM, a.checksums_of(rows))


def conditions(**given: Any) -> tuple[Any, ...]:
    """The conditions of a group of which nothing goes but by those that are given."""
    usual: dict[str, Any] = {"is_gone": False, "gone_below": 0, "cutoff": 0}
    usual |= {"commits_above": FOREVER, "erasable_before": FOREVER, "senders": [], "taken_back": []}
    return tuple((usual | given).values())


def plan(
    rows: pyarrow.Table,
    of_groups: Mapping[int, tuple[Any, ...]],
    *,
    span: int = SPAN,
    first: int = 1,
    missing: Collection[int] = (),
) -> ArchivePlan:
    """A plan for groups of ``rows``. The index begins with the number ``first``, and does not count ``missing``."""
    made = ArchivePlan(groups=dict(of_groups))
    for key in of_groups:
        of_group = [
            row
            for row in rows.to_pylist()
            if row[a.GROUP_KEY] == key and row[a.SEQUENCE_NUM] >= first and row[a.SEQUENCE_NUM] not in missing
        ]
        numbers, times = [row[a.SEQUENCE_NUM] for row in of_group], [row[a.CREATED_AT] for row in of_group]
        size = sum(len(row[a.BODY]) for row in of_group)
        bounds = min(numbers), max(numbers), min(times), max(times)
        made.parts.append(PartRow(key, -1, span, *bounds, len(of_group), size, 0))
    return made


class Alive:
    """What has keys, by groups: all that is not given."""

    def __init__(self, some: Mapping[int, Sequence[Range]] | None = None) -> None:
        self._some = some or {}

    def of(self, part: PartRow) -> Sequence[Range]:
        return self._some.get(part.group_key, [Range(part.first_seq, part.last_seq)])


class _Hot:
    """A database that knows of the table, and of nothing else."""

    def archive_state(self) -> ArchiveState:
        return ArchiveState("mine", 0, unerased=True, turn=0, former_turn=0)


def look(
    table: Table, wanted: ArchivePlan, alive: Alive | None = None, into: list[Measured] | None = None
) -> dict[Key, Measured]:
    """What goes by a plan, by parts; also ``into`` a list, as far as it comes."""
    found = [] if into is None else into
    found.extend(due_rows.look(cast("Hot", _Hot()), table.path, wanted, cast("Living", alive or Alive())))
    return {each.part.key: each for each in found}
