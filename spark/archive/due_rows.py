"""Asks, without Spark, which rows of a partition go: DataFusion judges by the rules' own expressions."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from conclave.archive.faults import one_line
from conclave.archive.layout import in_partitions
from conclave.archive.scan import batches, by_rows
from conclave.retention.rules import Bounds
from conclave.store.resources.receipts import Erased
from spark.archive import columns as a, data_files
from spark.archive.data_files import Partition
from spark.archive.eraser import MEASURED, rule_of_row
from spark.archive.expiry_plan import ArchivePlan
from spark.archive.table_files import StoredFile
from spark.hot_store import ArchiveError

NUMBERS = [a.GROUP_KEY, a.SEQUENCE_NUM]
"""The columns that name a message."""

ENTRIES_AT_ONCE = 32_768
"""A query has at most 32,768 groups, senders and numbers that were taken back, but all of one group at least.

And it has all users under a legal hold, who count in every group.
"""

_MARKS = {
    **dict.fromkeys((a.IS_GONE, a.IS_RESTORED), "BOOLEAN"),
    **dict.fromkeys((a.GONE_BELOW, a.CUTOFF, a.COMMITS_ABOVE, a.ERASABLE_BEFORE, a.DEAD_UP_TO), "BIGINT"),
}
"""What a group has one value of, with its type: the columns of DUE after its key, in their order."""

_RULE = "rule"

_DUE = pyarrow.schema(
    [
        (a.GROUP_KEY, pyarrow.int64()),
        (a.SEQUENCE_NUM, pyarrow.int64()),
        (a.CREATED_AT, pyarrow.int64()),
        (_RULE, pyarrow.int64()),
    ]
)

_LOOK = f"""
SELECT {a.GROUP_KEY}, {a.SEQUENCE_NUM}, {a.CREATED_AT}, CASE {_RULE} {{numbered}} END AS {_RULE} FROM (
    SELECT messages.{a.GROUP_KEY} AS {a.GROUP_KEY}, {a.SEQUENCE_NUM}, {a.CREATED_AT}, {{rule}} AS {_RULE}
    FROM archive AS messages JOIN {{due}} AS due
        ON messages.{a.GROUP_KEY} = due_group {{joins}}
    WHERE {{where}} AND messages.{a.GROUP_KEY} BETWEEN {{least}} AND {{most}}
) WHERE {_RULE} IS NOT NULL
"""

_OF_SENDERS = (
    "LEFT JOIN {} AS of_senders"
    f" ON messages.{a.GROUP_KEY} = senders_group AND {a.SENDER_ID} = decode(due_sender, 'hex')"
)

_HELD = f"LEFT JOIN {{}} AS of_held ON {a.SENDER_ID} = decode(held_sender, 'hex')"

_TAKEN_BACK = f"LEFT JOIN {{}} AS taken ON messages.{a.GROUP_KEY} = taken_group AND {a.SEQUENCE_NUM} = taken_number"


class DueRows:
    """The messages that go from a partition, by their numbers."""

    def __init__(self, rows: pyarrow.Table) -> None:
        """``rows``: as ``find`` has them, in any order."""
        self._rows = rows.sort_by([(name, "ascending") for name in NUMBERS]).combine_chunks()
        self._numbers = self._rows.select(NUMBERS)
        self.count = rows.num_rows
        self.groups: list[int] = self._rows[a.GROUP_KEY].unique().to_pylist()

    def by_rules(self) -> dict[int, list[Erased]]:
        """Return what goes of each group, in the order of MEASURED."""
        grouped = self._rows.group_by([a.GROUP_KEY, _RULE], use_threads=False)
        found = grouped.aggregate([(a.SEQUENCE_NUM, "count"), (a.SEQUENCE_NUM, "max"), (a.CREATED_AT, "max")])
        gone: dict[int, list[Erased]] = {}
        for row in found.sort_by(_RULE).to_pylist():
            last, newest = row[f"{a.SEQUENCE_NUM}_max"], row[f"{a.CREATED_AT}_max"]
            erased = Erased(MEASURED[row[_RULE]], row[f"{a.SEQUENCE_NUM}_count"], last, newest)
            gone.setdefault(row[a.GROUP_KEY], []).append(erased)
        return gone

    def without(self, rows: pyarrow.Table) -> pyarrow.Table:
        """Return those of ``rows`` that stay, in their order."""
        near = self._near(rows)
        if near is None:
            return rows
        places = rows.select(NUMBERS).append_column("place", pyarrow.array(range(rows.num_rows), pyarrow.int64()))
        left = places.join(near, NUMBERS, join_type="left anti", use_threads=False)
        return rows if left.num_rows == rows.num_rows else rows.take(left["place"].combine_chunks().sort())

    def _near(self, rows: pyarrow.Table) -> pyarrow.Table | None:
        """Return what goes from the first to the last of ``rows``; None if nothing does."""
        if not (self.count and rows.num_rows):
            return None
        ordered = rows.select(NUMBERS).sort_by([(name, "ascending") for name in NUMBERS])
        groups, numbers = self._rows[a.GROUP_KEY], self._rows[a.SEQUENCE_NUM]

        def place(at: int) -> tuple[int, int]:
            return groups[at].as_py(), numbers[at].as_py()

        least, most = (tuple(ordered[name][at].as_py() for name in NUMBERS) for at in (0, ordered.num_rows - 1))
        first = bisect_left(range(self.count), least, key=place)
        end = bisect_right(range(self.count), most, key=place)
        return self._numbers.slice(first, end - first) if first < end else None


def find(
    path: Path,
    plan: ArchivePlan,
    partition: Partition,
    files: Collection[StoredFile],
    held_groups: Collection[int] | None = None,
) -> DueRows:
    """Return what goes by ``plan.groups`` from a partition of the table at ``path``. Raises ArchiveError.

    ``files``: those of the partition that may have messages of these groups. ``held_groups``: return what would go and
    is under a legal hold instead, on one of these groups or on its sender.
    """
    first, last = min(file.first for file in files), max(file.last for file in files)
    try:
        query = by_rows(DeltaTable(str(path)))
        queries = (_query(some, plan.held, partition, held_groups) for some in _divided(plan, first, last))
        found = [batch.cast(_DUE) for each in queries for batch in batches(query, each)]
    except (DeltaError, pyarrow.ArrowException, OSError) as error:
        require_whole(path, files)
        raise ArchiveError(f"{path}: cannot be read: {one_line(error)}") from error
    return DueRows(pyarrow.Table.from_batches(found, _DUE))


def require_whole(path: Path, files: Collection[StoredFile]) -> None:
    """Raise ArchiveError if a page of these files is damaged, and name the file: DataFusion looks at no checksums."""
    for file in files:
        for _ in data_files.read(path / file.path):
            pass


def _divided(plan: ArchivePlan, first: int, last: int) -> Iterator[dict[int, tuple[Any, ...]]]:
    """Yield the conditions of groups for messages with numbers from ``first`` to ``last``, by group key.

    Those of neighbours come together.
    """
    some: dict[int, tuple[Any, ...]] = {}
    size = 0
    for group_key, conditions in sorted(plan.groups.items()):
        *others, numbers = conditions
        taken = [number for number in numbers if first <= number <= last]
        weight = 1 + len(others[-1]) + len(taken)
        if some and size + weight > ENTRIES_AT_ONCE:
            yield some
            some, size = {}, 0
        some[group_key] = (*others, taken)
        size += weight
    if some:
        yield some


def _query(
    groups: Mapping[int, tuple[Any, ...]],
    held: Collection[bytes],
    partition: Partition,
    held_groups: Collection[int] | None,
) -> str:
    senders, taken = list[tuple[int, str]](), list[tuple[int, int]]()
    for group_key, (*_, of_senders, numbers) in groups.items():
        senders += [(group_key, each.hex()) for each in sorted(set(of_senders))]
        taken += [(group_key, each) for each in sorted(set(numbers))]
    users = [(each.hex(),) for each in sorted(set(held))]
    bounds = Bounds(
        gone=a.GONE_BELOW,
        unheld=_chosen(users, groups, held_groups),
        by_deleted="due_sender IS NOT NULL" if senders else "FALSE",
        is_deleted=a.IS_GONE,
        is_taken_back="taken_number IS NOT NULL" if taken else "FALSE",
    )
    joins = [_OF_SENDERS.format(_values(senders, senders_group="BIGINT", due_sender="VARCHAR"))] if senders else []
    joins += [_TAKEN_BACK.format(_values(taken, taken_group="BIGINT", taken_number="BIGINT"))] if taken else []
    joins += [_HELD.format(_values(users, held_sender="VARCHAR"))] if users else []
    return _LOOK.format(
        numbered=" ".join(f"WHEN '{rule}' THEN {at}" for at, rule in enumerate(MEASURED)),
        rule=rule_of_row(bounds),
        due=_values([(key, *each[: len(_MARKS)]) for key, each in groups.items()], due_group="BIGINT", **_MARKS),
        joins=" ".join(joins),
        where=in_partitions([partition]),
        least=min(groups),
        most=max(groups),
    )


def _chosen(users: Collection[Any], groups: Collection[int], held_groups: Collection[int] | None) -> str:
    """Return the condition for what no legal hold covers, or for what one does if ``held_groups`` are given."""
    if held_groups is None:
        return "held_sender IS NULL" if users else ""
    of_groups = ", ".join(str(key) for key in sorted({*groups} & {*held_groups}))
    conditions = [f"messages.{a.GROUP_KEY} IN ({of_groups})"] if of_groups else []
    conditions += ["held_sender IS NOT NULL"] if users else []
    return f"({' OR '.join(conditions) or 'FALSE'})"


def _values(rows: Sequence[tuple[Any, ...]], **types: str) -> str:
    """Return a subquery for ``rows``, with names and types of columns: each column as one string.

    DataFusion takes ten times as long to plan with a literal for each value.
    """
    columns = zip(types, zip(*rows, strict=True), strict=True)
    lists = ", ".join(
        f"unnest(string_to_array('{','.join(map(str, values))}', ',')) AS {name}" for name, values in columns
    )
    cast = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in types.items())
    return f"(SELECT {cast} FROM (SELECT {lists}))"
