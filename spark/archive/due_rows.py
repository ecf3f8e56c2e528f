"""Finds the due messages of parts, and the remaining messages, without Spark and without reading bodies.

DataFusion evaluates the expressions of the rules. It does not verify page checksums, so the same rows are read again
by whole pages, with verified checksums.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import xor
from pathlib import Path
from typing import Any

import pyarrow
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import compute

from conclave.archive.faults import one_line
from conclave.archive.layout import in_partitions
from conclave.archive.scan import batches, by_rows
from conclave.archive.snapshot import open_known
from conclave.keys.tree import Range
from conclave.retention import rules
from conclave.retention.policy import FOREVER
from conclave.retention.rules import Bounds
from conclave.store.archive import moves
from conclave.store.archive.moves import PartRow
from conclave.store.resources.receipts import ErasedMessages
from spark.archive import columns as a, data_files
from spark.archive.data_files import Partition, StoredFile
from spark.archive.expiry_plan import RULES, ArchivePlan
from spark.archive.living import Living, holds
from spark.hot_store import ArchiveRunError, Hot

NUMBERS = [a.GROUP_KEY, a.SEQUENCE_NUM]
"""The columns that identify a message."""

ENTRIES_AT_ONCE = 32_768
"""The most groups, senders and taken back numbers in one query, but at least one group.

Users under a legal hold are not counted: each query has all of them.
"""

MESSAGES_AT_ONCE = 2_000_000
"""The most messages to query at once, but at least one part. Due messages are kept in memory."""

MARKS = {
    "is_gone": "BOOLEAN",
    **dict.fromkeys(("gone_below", "cutoff", "commits_above", "erasable_before"), "BIGINT"),
}
"""The columns with one value for each group, and their types."""

_BOUNDS = {"part_first": "BIGINT", "part_last": "BIGINT"}

_RULE = "rule"

_READ = [name for name in a.STORED.names if name != a.BODY]
"""The columns to read by whole pages: all that the rules use."""

_DUE = pyarrow.schema(
    [
        (a.GROUP_KEY, pyarrow.int64()),
        (a.SEQUENCE_NUM, pyarrow.int64()),
        (a.CREATED_AT, pyarrow.int64()),
        (_RULE, pyarrow.int64()),
    ]
)

_DUE_QUERY = f"""
SELECT {a.GROUP_KEY}, {a.SEQUENCE_NUM}, {a.CREATED_AT}, CASE {_RULE} {{numbered}} END AS {_RULE} FROM (
    SELECT messages.{a.GROUP_KEY} AS {a.GROUP_KEY}, {a.SEQUENCE_NUM}, {a.CREATED_AT}, {{rule}} AS {_RULE}
    FROM archive AS messages JOIN {{due}} AS due
        ON messages.{a.GROUP_KEY} = due_group {{joins}}
    WHERE {{where}} AND messages.{a.GROUP_KEY} BETWEEN {{least}} AND {{most}}
        AND {a.SEQUENCE_NUM} BETWEEN part_first AND part_last
) WHERE {_RULE} IS NOT NULL
"""

_OF_SENDERS = (
    "LEFT JOIN {} AS of_senders"
    f" ON messages.{a.GROUP_KEY} = senders_group AND {a.SENDER_ID} = decode(due_sender, 'hex')"
)

_HELD = f"LEFT JOIN {{}} AS of_held ON {a.SENDER_ID} = decode(held_sender, 'hex')"

_TAKEN_BACK = f"LEFT JOIN {{}} AS taken ON messages.{a.GROUP_KEY} = taken_group AND {a.SEQUENCE_NUM} = taken_number"


@dataclass(frozen=True)
class Measured:
    """The due messages of a part: ``gone`` by rule, and ``numbers``. ``left``: the remaining part, or None."""

    part: PartRow
    gone: Sequence[ErasedMessages]
    numbers: Sequence[Range]
    left: PartRow | None


def look(hot: Hot, path: Path, plan: ArchivePlan, living: Living) -> Iterator[Measured]:
    """Yield the due messages of ``plan``, part by part. Omits parts without due messages.

    Whole parts are found by the index, other parts by reading the table at ``path``. Whole parts do not require a
    readable table, but a readable table must match the database. ``living``: finds the readable messages. Raises
    ArchiveRunError; the parts that were yielded before are correct.
    """
    fault = _table_fault(hot, path)
    for part in plan.parts:
        if erased := plan.whole.get(part.key):
            yield Measured(part, [erased], [Range(part.first_seq, part.last_seq)], None)
    if fault and plan.partial:
        raise ArchiveRunError(fault)
    faults = []
    for query in _queries(path, plan):
        try:
            yield from _measure(query, living)
        except ArchiveRunError as error:
            faults.append(str(error))  # other partitions are still erased
    if faults:
        raise ArchiveRunError("; ".join(faults))


def recount(hot: Hot, path: Path, living: Living) -> Iterator[tuple[PartRow, PartRow | None]]:
    """Yield the parts that have messages without keys, each with its readable part, or None.

    Raises ArchiveRunError; the parts that were yielded before are correct.
    """
    incomplete = [part for part in hot.read(moves.parts) if living.of(part) != [Range(part.first_seq, part.last_seq)]]
    if not incomplete:
        return
    if fault := _table_fault(hot, path):
        raise ArchiveRunError(fault)
    parts_by_partition: dict[Partition, dict[int, PartRow]] = defaultdict(dict)
    for part in incomplete:
        parts_by_partition[part.lifetime, part.span][part.group_key] = part
    faults = []
    for _, parts, files in _files(path, parts_by_partition, {part.group_key for part in incomplete}):
        readable, remaining = _ReadableRows(parts, living), defaultdict[int, _Remaining](_Remaining)
        try:
            for file in files:
                for rows in data_files.read(path / file.path, _READ, sorted(parts)):
                    _add(remaining, readable.of(rows))
        except ArchiveRunError as error:
            faults.append(str(error))
            continue
        for part in parts.values():
            yield part, remaining[part.group_key].row(part)
    if faults:
        raise ArchiveRunError("; ".join(faults))


def count_held(hot: Hot, path: Path, plan: ArchivePlan, living: Living, held_groups: Collection[int]) -> int:
    """Count the due messages of ``plan`` that are under a legal hold on one of these groups or on their sender.

    Raises ArchiveRunError.
    """
    count = sum(erased.messages for key, erased in plan.whole.items() if key[0] in held_groups)
    if (fault := _table_fault(hot, path)) and plan.partial:
        raise ArchiveRunError(fault)
    for query in _queries(path, plan):
        count += _ReadableRows(query.parts, living).of(_find(query, held_groups)).num_rows
    return count


def _table_fault(hot: Hot, path: Path) -> str:
    """Return in one line why the table cannot be read, or "".

    Raises ArchiveRunError if the table does not match the database, for example if only one of them was restored.
    """
    try:
        _, fault = open_known(path, hot.archive_state)
    except (DeltaError, pyarrow.ArrowException, OSError) as error:
        return f"{path}: cannot be read: {one_line(error)}"
    if fault:
        raise ArchiveRunError(fault)
    return ""


@dataclass(frozen=True)
class _Query:
    """A query of the table at ``path``: for parts of one partition, by group key, with their files."""

    path: Path
    plan: ArchivePlan
    partition: Partition
    parts: dict[int, PartRow]
    files: list[StoredFile]


def _queries(path: Path, plan: ArchivePlan) -> Iterator[_Query]:
    if not plan.partial:
        return
    parts_by_partition: dict[Partition, dict[int, PartRow]] = defaultdict(dict)
    for part in plan.partial:
        parts_by_partition[part.lifetime, part.span][part.group_key] = part
    for partition, parts, files in _files(path, parts_by_partition, plan.groups):
        for query_parts in _split_into_queries(plan, parts):
            yield _Query(path, plan, partition, query_parts, files)


def _files(
    path: Path, parts: Mapping[Partition, dict[int, PartRow]], groups: Collection[int]
) -> Iterator[tuple[Partition, dict[int, PartRow], list[StoredFile]]]:
    """Yield partitions with their parts, and the files that may have messages of ``groups``."""
    try:
        stored = data_files.of_groups(path, parts, groups)
    except (DeltaError, pyarrow.ArrowException, OSError) as error:
        raise ArchiveRunError(f"{path}: cannot be read: {one_line(error)}") from error
    for partition, partition_parts in sorted(parts.items()):
        yield partition, partition_parts, [file for file in stored if file.partition == partition]


def _split_into_queries(plan: ArchivePlan, parts: Mapping[int, PartRow]) -> Iterator[dict[int, PartRow]]:
    """Divide parts into queries of limited size, with adjacent groups together."""
    query_parts: dict[int, PartRow] = {}
    entries = messages = 0
    for group_key, part in sorted(parts.items()):
        *_, senders, _ = plan.groups[group_key]
        weight = 1 + len(senders) + len(_within(part, plan.taken_back(group_key)))
        if query_parts and (entries + weight > ENTRIES_AT_ONCE or messages + part.message_count > MESSAGES_AT_ONCE):
            yield query_parts
            query_parts, entries, messages = {}, 0, 0
        query_parts[group_key] = part
        entries, messages = entries + weight, messages + part.message_count
    if query_parts:
        yield query_parts


def _within(part: PartRow, numbers: Collection[int]) -> list[int]:
    return [number for number in numbers if part.first_seq <= number <= part.last_seq]


class _ReadableRows:
    """Filters the rows of a partition that are in the index and can be read."""

    def __init__(self, parts: Mapping[int, PartRow], living: Living) -> None:
        ordered = [parts[key] for key in sorted(parts)]
        self._groups = pyarrow.array([part.group_key for part in ordered], pyarrow.int64())
        self._firsts = pyarrow.array([part.first_seq for part in ordered], pyarrow.int64())
        self._lasts = pyarrow.array([part.last_seq for part in ordered], pyarrow.int64())
        self._partly_readable: dict[int, list[Range]] = {}
        """The readable numbers of parts with unreadable messages."""
        for part in ordered:
            ranges = living.of(part)
            if ranges != [Range(part.first_seq, part.last_seq)]:
                self._partly_readable[part.group_key] = ranges

    def of(self, rows: pyarrow.Table) -> pyarrow.Table:
        """Return the readable rows."""
        positions = compute.index_in(rows[a.GROUP_KEY], self._groups)
        numbers = rows[a.SEQUENCE_NUM]
        is_within = compute.and_(
            compute.greater_equal(numbers, self._firsts.take(positions)),
            compute.less_equal(numbers, self._lasts.take(positions)),
        )
        indexed_rows = rows.filter(is_within)
        if not self._partly_readable:
            return indexed_rows
        return indexed_rows.filter(
            pyarrow.array([self._is_readable(*row) for row in a.values_of(indexed_rows, NUMBERS)], pyarrow.bool_())
        )

    def _is_readable(self, group_key: int, number: int) -> bool:
        ranges = self._partly_readable.get(group_key)
        return ranges is None or holds(ranges, number)


def _measure(query: _Query, living: Living) -> Iterator[Measured]:
    parts, readable = query.parts, _ReadableRows(query.parts, living)
    due = readable.of(_find(query))
    if not due.num_rows:
        return
    numbers, by_rules = _numbers(due), _by_rules(due)
    groups = pyarrow.array(sorted(numbers), pyarrow.int64())
    remaining: dict[int, _Remaining] = defaultdict(_Remaining)
    read_count = 0
    for file in query.files:
        for rows in data_files.read(query.path / file.path, _READ, sorted(numbers)):
            readable_rows = readable.of(rows.filter(compute.is_in(rows[a.GROUP_KEY], groups)))
            read_count += readable_rows.num_rows
            _add(remaining, _without(readable_rows, due))
    index_count = sum(parts[group_key].message_count for group_key in numbers)
    expected = {group_key: parts[group_key].message_count - _count(erased) for group_key, erased in by_rules.items()}
    if read_count != index_count or any(remaining[group_key].count != count for group_key, count in expected.items()):
        raise ArchiveRunError(
            f"{query.path}: {read_count:,} messages are read of {len(numbers)} groups in"
            f" {in_partitions([query.partition])}, where the index has {index_count:,}: `conclave archive verify` says"
            " more"
        )
    for group_key, ranges in numbers.items():
        part = parts[group_key]
        yield Measured(part, by_rules[group_key], ranges, remaining[group_key].row(part))


def _count(erased: Sequence[ErasedMessages]) -> int:
    return sum(each.messages for each in erased)


def _without(rows: pyarrow.Table, due: pyarrow.Table) -> pyarrow.Table:
    """Return the rows that are not due."""
    return rows.join(due.select(NUMBERS), NUMBERS, join_type="left anti", use_threads=False)


def _numbers(due: pyarrow.Table) -> dict[int, list[Range]]:
    """Return the numbers of messages as ranges, by group key."""
    ordered = due.select(NUMBERS).sort_by([(name, "ascending") for name in NUMBERS])
    ranges_by_group: dict[int, list[Range]] = {}
    for group_key, number in a.values_of(ordered, NUMBERS):
        ranges = ranges_by_group.setdefault(group_key, [])
        if ranges and ranges[-1].last + 1 == number:
            ranges[-1] = Range(ranges[-1].first, number)
        else:
            ranges.append(Range(number, number))
    return ranges_by_group


def _by_rules(due: pyarrow.Table) -> dict[int, list[ErasedMessages]]:
    """Return the due messages of each group, in the order of RULES."""
    grouped = due.group_by([a.GROUP_KEY, _RULE], use_threads=False)
    totals = grouped.aggregate([(a.SEQUENCE_NUM, "count"), (a.SEQUENCE_NUM, "max"), (a.CREATED_AT, "max")])
    erased: dict[int, list[ErasedMessages]] = defaultdict(list)
    for row in totals.sort_by(_RULE).to_pylist():
        last, newest = row[f"{a.SEQUENCE_NUM}_max"], row[f"{a.CREATED_AT}_max"]
        erased[row[a.GROUP_KEY]].append(ErasedMessages(RULES[row[_RULE]], row[f"{a.SEQUENCE_NUM}_count"], last, newest))
    return erased


@dataclass
class _Remaining:
    """The remaining messages of a part: the bounds of their numbers and times."""

    first: int = FOREVER
    last: int = 0
    oldest: int = FOREVER
    newest: int = 0
    count: int = 0
    size: int = 0
    checksum: int = 0

    def add(self, first: int, last: int, oldest: int, newest: int, size: int, checksums: Sequence[int]) -> None:
        """Add messages with these bounds and checksums."""
        self.first, self.last = min(self.first, first), max(self.last, last)
        self.oldest, self.newest = min(self.oldest, oldest), max(self.newest, newest)
        self.count += len(checksums)
        self.size += size
        self.checksum = reduce(xor, checksums, self.checksum)

    def row(self, part: PartRow) -> PartRow | None:
        """Return the new index row of ``part``, or None if no message remains."""
        bounds = (self.first, self.last, self.oldest, self.newest)
        return PartRow(*part.key, *bounds, self.count, self.size, self.checksum) if self.count else None


_GROUPED = [
    a.GROUP_KEY,
    *(f"{name}_{which}" for name in (a.SEQUENCE_NUM, a.CREATED_AT) for which in ("min", "max")),
    f"{a.SIZE}_sum",
    f"{a.CHECKSUM}_list",
]


def _add(remaining: dict[int, _Remaining], rows: pyarrow.Table) -> None:
    bounds = [(name, which) for name in (a.SEQUENCE_NUM, a.CREATED_AT) for which in ("min", "max")]
    grouped = rows.group_by(a.GROUP_KEY, use_threads=False).aggregate([*bounds, (a.SIZE, "sum"), (a.CHECKSUM, "list")])
    for group_key, *values in a.values_of(grouped, _GROUPED):
        remaining[group_key].add(*values)


def _find(query: _Query, held_groups: Collection[int] | None = None) -> pyarrow.Table:
    """Return the due rows of a query's parts in the table, including erased ones. Raises ArchiveRunError.

    ``held_groups``: instead return the rows under a legal hold on one of these groups or on their sender.
    """
    try:
        found = batches(by_rows(DeltaTable(str(query.path))), _sql(query, held_groups))
        due_batches = [batch.cast(_DUE) for batch in found]
    except (DeltaError, pyarrow.ArrowException, OSError) as error:
        for file in query.files:  # so that the error names a damaged page
            for _ in data_files.read(query.path / file.path):
                pass
        raise ArchiveRunError(f"{query.path}: cannot be read: {one_line(error)}") from error
    return pyarrow.Table.from_batches(due_batches, _DUE)


def _sql(query: _Query, held_groups: Collection[int] | None) -> str:
    plan, parts = query.plan, query.parts
    senders, withdrawn, due = list[tuple[int, str]](), list[tuple[int, int]](), list[tuple[Any, ...]]()
    for group_key, part in parts.items():
        *marks, deleted_senders, numbers = plan.groups[group_key]
        senders += [(group_key, each.hex()) for each in sorted(set(deleted_senders))]
        withdrawn += [(group_key, each) for each in sorted(_within(part, numbers))]
        due.append((group_key, *marks, part.first_seq, part.last_seq))
    users = [(each.hex(),) for each in sorted(set(plan.held))]
    bounds = Bounds(
        gone="gone_below",
        unheld=_hold_condition(users, parts, held_groups),
        by_deleted="due_sender IS NOT NULL" if senders else "FALSE",
        is_deleted="is_gone",
        is_taken_back="taken_number IS NOT NULL" if withdrawn else "FALSE",
    )
    joins = [_OF_SENDERS.format(_values(senders, senders_group="BIGINT", due_sender="VARCHAR"))] if senders else []
    joins += [_TAKEN_BACK.format(_values(withdrawn, taken_group="BIGINT", taken_number="BIGINT"))] if withdrawn else []
    joins += [_HELD.format(_values(users, held_sender="VARCHAR"))] if users else []
    return _DUE_QUERY.format(
        numbered=" ".join(f"WHEN '{rule}' THEN {index}" for index, rule in enumerate(RULES)),
        rule=f"CASE WHEN {rules.may_erase(bounds)} THEN {rules.rule_name(RULES, bounds)} END",
        due=_values(due, due_group="BIGINT", **MARKS, **_BOUNDS),
        joins=" ".join(joins),
        where=in_partitions([query.partition]),
        least=min(parts),
        most=max(parts),
    )


def _hold_condition(users: Collection[Any], groups: Collection[int], held_groups: Collection[int] | None) -> str:
    """Return the condition for messages under no legal hold. With ``held_groups``: for messages under a hold."""
    if held_groups is None:
        return "held_sender IS NULL" if users else ""
    keys = ", ".join(str(key) for key in sorted({*groups} & {*held_groups}))
    conditions = [f"messages.{a.GROUP_KEY} IN ({keys})"] if keys else []
    conditions += ["held_sender IS NOT NULL"] if users else []
    return f"({' OR '.join(conditions) or 'FALSE'})"


def _values(rows: Sequence[tuple[Any, ...]], **types: str) -> str:
    """Return a subquery for ``rows``. ``types``: the type of each column, by name.

    Each column is passed as one string: with a literal for each value, DataFusion takes ten times as long to plan.
    """
    columns = zip(types, zip(*rows, strict=True), strict=True)
    lists = ", ".join(
        f"unnest(string_to_array('{','.join(map(str, values))}', ',')) AS {name}" for name, values in columns
    )
    cast = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in types.items())
    return f"(SELECT {cast} FROM (SELECT {lists}))"
