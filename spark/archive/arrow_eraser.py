"""Looks at rows of the archive, and deletes some, in this process: quick for what is small, since no Spark starts.

DataFusion says by the rules which numbers go. All else is told, and copied, by whole pages only, whose checksums are
compared as Spark compares them. A file is rewritten a row group at a time.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import reduce
from operator import xor

import pyarrow
from deltalake.transaction import AddAction
from pyarrow import compute

from conclave.failpoints import reach
from conclave.keys import ranges
from conclave.store.archive.erasures import Key
from conclave.store.archive.moves import PartRow
from spark.archive import columns as a, data_files, due_rows, table_files
from spark.archive.data_files import Partition
from spark.archive.due_rows import NUMBERS, DueRows
from spark.archive.eraser import Living, Measured
from spark.archive.expiry_plan import ArchivePlan
from spark.archive.table import Table
from spark.archive.table_files import StoredFile
from spark.hot_store import ArchiveError

MOST_BYTES = 4 * 1024**3
"""So many bytes of files are rewritten by one process in about a minute; for more, all cores of Spark are worth it."""

_GROUPED = (
    a.GROUP_KEY,
    *(f"{a.SEQUENCE_NUM}_list", f"{a.CREATED_AT}_min", f"{a.CREATED_AT}_max", "size_sum", f"{a.CHECKSUM}_list"),
)

MOST_MESSAGES = 4_000_000
"""Of so many messages of a partition it can be kept in memory which go: some 200 bytes for each that does."""


class ArrowEraser:
    """An Eraser."""

    def __init__(self, table: Table) -> None:
        """Take what is needed; nothing is read yet."""
        self._table = table

    def suits(self, plan: ArchivePlan) -> bool:
        """Tell whether what may have to be rewritten is little enough."""
        files = self._files(plan)
        return sum(file.size for some in files.values() for file in some) <= MOST_BYTES and all(
            sum(file.messages for file in some) <= MOST_MESSAGES for some in files.values()
        )

    def measure(self, plan: ArchivePlan) -> dict[Key, Measured]:
        """See Eraser."""
        measured: dict[Key, Measured] = {}
        keys = sorted(plan.groups)
        groups = pyarrow.array(keys, pyarrow.int64())
        for partition, files in self._files(plan).items():
            due, left = due_rows.find(self._table.path, plan, partition, files), _Left(partition, plan.taken_back)
            found = 0
            for file in files:
                for rows in data_files.read(self._table.path / file.path, groups=keys):
                    known = rows.filter(compute.is_in(rows[a.GROUP_KEY], groups))
                    stays = due.without(known)
                    found += known.num_rows - stays.num_rows
                    left.add(stays)
            self._require_all(due, found, files)
            gone = due.by_rules()
            for group_key in gone.keys() | left.parts.keys():
                measured[group_key, *partition] = Measured(
                    gone.get(group_key, []), left.parts.get(group_key), left.taken_back[group_key]
                )
        planned = set(plan.partial)
        return {key: each for key, each in measured.items() if key in planned}

    def delete(self, plan: ArchivePlan) -> int:
        """See Eraser. What is left of a file lies in a new one, and all of this is one version of the table."""
        removed: list[StoredFile] = []
        added: list[AddAction] = []
        count = 0
        for partition, files in self._files(plan).items():
            due = due_rows.find(self._table.path, plan, partition, files)
            found = 0
            for file in files if due.count else ():
                if goes := self._count(file, due):
                    removed.append(file)
                    found += goes
                    if goes < file.messages:
                        added.append(self._rewrite(file, due, file.messages - goes))
            self._require_all(due, found, files)
            count += found
        reach("archive.rewritten")
        if removed:
            self._table.replace(removed, added)
        return count

    def living(self, group_keys: Collection[int], partitions: Collection[Partition]) -> Living:
        """See Eraser."""
        keys = sorted(group_keys)
        groups = pyarrow.array(keys, pyarrow.int64())
        living: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for file in table_files.of_groups(self._table.path, partitions, group_keys):
            for rows in data_files.read(self._table.path / file.path, NUMBERS, keys):
                for group_key, first, last in _runs(rows.filter(compute.is_in(rows[a.GROUP_KEY], groups))):
                    living[group_key].append((first, last))
        return {group_key: ranges.joined(each) for group_key, each in living.items()}

    def _files(self, plan: ArchivePlan) -> dict[Partition, list[StoredFile]]:
        """Return the files that may have messages that go, by partitions."""
        found: dict[Partition, list[StoredFile]] = defaultdict(list)
        for file in table_files.of_groups(self._table.path, plan.touched, plan.groups):
            found[file.partition].append(file)
        return found

    def _count(self, file: StoredFile, due: DueRows) -> int:
        """Return how many messages of a file go."""
        some = data_files.read(self._table.path / file.path, NUMBERS, due.groups)
        return sum(rows.num_rows - due.without(rows).num_rows for rows in some)

    def _rewrite(self, file: StoredFile, due: DueRows, stay: int) -> AddAction:
        """Write what stays of a file, ``stay`` messages, to a new one."""
        written = 0

        def stays() -> Iterator[pyarrow.Table]:
            nonlocal written
            for rows in data_files.read(self._table.path / file.path):
                left = due.without(rows)
                written += left.num_rows
                yield left

        added = data_files.write_one(self._table.path, file.partition, stays())
        if not added or written != stay:
            raise ArchiveError(f"{self._table.path / file.path}: of {stay} messages that stay it has {written}")
        return added

    def _require_all(self, due: DueRows, found: int, files: Collection[StoredFile]) -> None:
        if found != due.count:
            due_rows.require_whole(self._table.path, files)
            raise ArchiveError(f"{self._table.path}: {due.count} messages are due where files have {found} of them")


class _Left:
    """What stays of a partition, by groups: ``parts``; and what of it was taken back, ``taken_back``."""

    def __init__(self, partition: Partition, taken_back: Mapping[int, Collection[int]]) -> None:
        self._partition = partition
        self._taken_back = {group_key: frozenset(numbers) for group_key, numbers in taken_back.items()}
        self.parts: dict[int, PartRow] = {}
        self.taken_back: dict[int, list[int]] = defaultdict(list)

    def add(self, rows: pyarrow.Table) -> None:
        """Add rows of any groups."""
        sizes = compute.binary_length(rows[a.BODY]).cast(pyarrow.int64())
        facts = rows.select([*NUMBERS, a.CREATED_AT, a.CHECKSUM]).append_column("size", sizes)
        grouped = facts.group_by(a.GROUP_KEY, use_threads=False).aggregate(
            [
                (a.SEQUENCE_NUM, "list"),
                (a.CREATED_AT, "min"),
                (a.CREATED_AT, "max"),
                ("size", "sum"),
                (a.CHECKSUM, "list"),
            ]
        )
        for group_key, numbers, oldest, newest, size, checksums in a.values_of(grouped, _GROUPED):
            bounds = (min(numbers), max(numbers), oldest, newest)
            some = PartRow(group_key, *self._partition, *bounds, len(numbers), size, reduce(xor, checksums))
            known = self.parts.get(group_key)
            self.parts[group_key] = _joined(known, some) if known else some
            self.taken_back[group_key] += self._taken_back.get(group_key, frozenset()).intersection(numbers)


def _joined(one: PartRow, other: PartRow) -> PartRow:
    return PartRow(
        *(one.group_key, one.lifetime, one.span),
        *(min(one.first_seq, other.first_seq), max(one.last_seq, other.last_seq)),
        *(min(one.oldest, other.oldest), max(one.newest, other.newest)),
        *(one.message_count + other.message_count, one.body_bytes + other.body_bytes),
        one.checksum ^ other.checksum,
    )


def _runs(rows: pyarrow.Table) -> Iterator[tuple[int, int, int]]:
    """Yield the numbers of messages as ranges of neighbours: group key, first and last."""
    if not rows.num_rows:
        return
    ordered = rows.sort_by([(a.GROUP_KEY, "ascending"), (a.SEQUENCE_NUM, "ascending")]).combine_chunks()
    groups, numbers = (ordered[name].chunk(0) for name in NUMBERS)
    is_other = compute.not_equal(groups[1:], groups[:-1])
    is_apart = compute.greater(compute.subtract(numbers[1:], numbers[:-1]), 1)
    ends = [*compute.indices_nonzero(compute.or_(is_other, is_apart)).to_pylist(), rows.num_rows - 1]
    firsts = [0, *(end + 1 for end in ends[:-1])]
    bounds = (
        groups.take(pyarrow.array(firsts)),
        numbers.take(pyarrow.array(firsts)),
        numbers.take(pyarrow.array(ends)),
    )
    yield from zip(*(each.to_pylist() for each in bounds), strict=True)
