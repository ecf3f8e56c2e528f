"""Reads and writes the archive's data files without Spark, in the format of those that Spark rewrites.

Rows are ordered by group and number. Each page has a checksum, by which a rewrite detects damage. Statistics
cover only groups, numbers and times: others would expose parts of bodies and senders.
"""

import json
import time
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from pyarrow import compute, parquet

from conclave.archive.faults import one_line
from conclave.archive.files import file_values
from conclave.archive.layout import FILE_BYTES, PAGE_ROWS, ROW_GROUP_BYTES
from spark.archive import columns as a
from spark.hot_store import ArchiveRunError

STATISTICS = (a.GROUP_KEY, a.SEQUENCE_NUM, a.CREATED_AT)
"""The columns with statistics in files and in the table's log."""

_PAGE_CHECK_ROWS = 64
"""The page size is checked every 64 messages, since bodies may be large."""

_OVERHEAD_BYTES = 64
"""The approximate bytes of a message besides its body."""

_LAYOUT: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": [a.GROUP_KEY, a.SENDER_ID],
    "write_statistics": list(STATISTICS),
    "write_page_index": True,
    "write_page_checksum": True,
    "write_batch_size": _PAGE_CHECK_ROWS,
    "max_rows_per_page": PAGE_ROWS,
    "store_schema": False,
}


class MisnamedError(ArchiveRunError):
    """The columns of a file have wrong names, so its metadata is damaged."""


Partition = tuple[int, int]
"""A partition of the table: its lifetime and its span."""


def write(folder: Path, rows: pyarrow.Table) -> list[AddAction]:
    """Write messages, with the columns and order of the table, to new data files in ``folder``.

    Returns the log actions that add the files to the table. The files are not synced. Raises OSError.
    """
    added = []
    for partition, partition_rows in _partitions(rows):
        partition_folder = folder / _partition_path(partition)
        partition_folder.parent.mkdir(mode=0o700, exist_ok=True)
        partition_folder.mkdir(mode=0o700, exist_ok=True)
        paths, row_groups = _new_paths(partition), _row_groups(partition_rows.select(a.STORED.names))
        while action := _write_file(folder, next(paths), partition, row_groups):
            added.append(action)
    return added


def _partition_path(partition: Partition) -> str:
    return f"{a.LIFETIME}={partition[0]}/{a.SPAN}={partition[1]}"


def _new_paths(partition: Partition) -> Iterator[str]:
    """Yield paths for new files of a partition, within the table's folder."""
    name = uuid4()
    return (f"{_partition_path(partition)}/part-{number:05d}-{name}.c000.zstd.parquet" for number in count())


def _partitions(rows: pyarrow.Table) -> Iterator[tuple[Partition, pyarrow.Table]]:
    sizes = rows.select([a.LIFETIME, a.SPAN]).group_by([a.LIFETIME, a.SPAN], use_threads=False)
    start = 0
    for each in sizes.aggregate([([], "count_all")]).to_pylist():  # in the order of their first rows
        yield (each[a.LIFETIME], each[a.SPAN]), rows.slice(start, each["count_all"])
        start += each["count_all"]


def _row_groups(rows: pyarrow.Table) -> Iterator[pyarrow.Table]:
    """Divide messages into row groups of at most ROW_GROUP_BYTES, but at least one message."""
    sizes = compute.add(compute.binary_length(rows[a.BODY]).cast(pyarrow.int64()), _OVERHEAD_BYTES)
    ends = compute.cumulative_sum(sizes)
    start = size = 0
    while start < rows.num_rows:
        remaining = range(start, rows.num_rows)
        count = bisect_right(remaining, size + ROW_GROUP_BYTES, key=lambda index: ends[index].as_py())
        yield rows.slice(start, max(1, count))
        start += max(1, count)
        size = ends[start - 1].as_py()


def _write_file(folder: Path, path: str, partition: Partition, row_groups: Iterator[pyarrow.Table]) -> AddAction | None:
    """Write the next row groups to a file of about FILE_BYTES at most. Return None if no row groups are left."""
    statistics_rows: list[pyarrow.Table] = []
    size = 0
    if (rows := next(row_groups, None)) is None:
        return None
    (folder / path).touch(mode=0o600, exist_ok=False)
    with parquet.ParquetWriter(folder / path, a.STORED, **_LAYOUT) as writer:
        while rows is not None:
            writer.write_table(rows, row_group_size=rows.num_rows)
            statistics_rows.append(rows.select(STATISTICS))
            size += rows.nbytes
            rows = next(row_groups, None) if size < FILE_BYTES else None
    statistics, now = _statistics(pyarrow.concat_tables(statistics_rows)), int(time.time() * 1000)
    return AddAction(path, (folder / path).stat().st_size, values(partition), now, data_change=True, stats=statistics)


def values(partition: Partition) -> dict[str, str | None]:
    """Return the partition values of a file for the table's log."""
    return {a.LIFETIME: str(partition[0]), a.SPAN: str(partition[1])}


def _statistics(rows: pyarrow.Table) -> str:
    """Return the statistics of a file for the table's log."""
    bounds = {name: compute.min_max(rows[name]).as_py() for name in STATISTICS}
    statistics = {
        "numRecords": rows.num_rows,
        "minValues": {name: each["min"] for name, each in bounds.items()},
        "maxValues": {name: each["max"] for name, each in bounds.items()},
        "nullCount": dict.fromkeys(STATISTICS, 0),
    }
    return json.dumps(statistics, separators=(",", ":"))


def read(
    path: Path, columns: Sequence[str] = a.STORED.names, groups: Sequence[int] | None = None
) -> Iterator[pyarrow.Table]:
    """Yield the messages of a file, a row group at a time, without the partition.

    ``groups``: the wanted group keys in ascending order; row groups without any of them may be omitted.
    Raises ArchiveRunError, including for a damaged page.
    """
    schema = pyarrow.schema([a.STORED.field(name) for name in columns])
    group_keys = None if groups is None else pyarrow.array(groups, pyarrow.int64())
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
            for number in range(file.num_row_groups):
                if group_keys is None or _has_any(_row_group(file, path, number, [a.GROUP_KEY]), group_keys):
                    yield _row_group(file, path, number, columns).cast(schema)
    except (pyarrow.ArrowException, OSError) as error:
        raise ArchiveRunError(f"{path}: {one_line(error)}") from error
    except (ValueError, LookupError) as error:
        raise MisnamedError(f"{path}: its columns are not those of the archive: {one_line(error)}") from error


def _row_group(file: parquet.ParquetFile, path: Path, number: int, columns: Sequence[str]) -> pyarrow.Table:
    """Read some columns of a row group. Raises ArchiveRunError if its number of rows is wrong.

    The footer has that number for the row group, and for each column, which pyarrow uses. It has no checksum.
    """
    rows = file.read_row_group(number, columns=list(columns))
    footer_rows = file.metadata.row_group(number).num_rows
    if rows.num_rows != footer_rows:
        raise ArchiveRunError(f"{path}: {rows.num_rows:,} messages are read where its footer has {footer_rows:,}")
    return rows


def _has_any(rows: pyarrow.Table, groups: pyarrow.Array) -> bool:
    """Return whether rows have any of these groups.

    Does not use statistics, which have no checksums: a damaged one may crash the process.
    """
    return bool(compute.any(compute.is_in(rows[a.GROUP_KEY], groups)).as_py())


def are_between(ordered: Sequence[int], least: int, most: int) -> bool:
    """Return whether any of ``ordered`` numbers is at least ``least`` and at most ``most``."""
    index = bisect_left(ordered, least)
    return index < len(ordered) and ordered[index] <= most


_LOG_COLUMNS = (
    *("path", "partition.lifetime", "partition.span", "size_bytes", "num_records"),
    *("min.group_key", "max.group_key", "min.sequence_num", "max.sequence_num"),
)

_WIDEST_BOUNDS = (-(2**63), 2**63 - 1) * 2


@dataclass(frozen=True)
class StoredFile:
    """A file of the table. ``path``: within the table's folder.

    ``least`` and ``most``: the bounds of its group keys. ``first`` and ``last``: the bounds of its message numbers.
    Without statistics in the log, as for other programs' files, they are the extreme integers: the file is always read.
    """

    path: str
    partition: Partition
    size: int
    messages: int
    least: int
    most: int
    first: int
    last: int


def stored(path: Path) -> list[StoredFile]:
    """Return the files of the table at ``path``. Raises ArchiveRunError, and the errors of deltalake."""
    actions = DeltaTable(str(path)).get_add_actions(flatten=True)
    return [
        StoredFile(
            name, (lifetime, span), size, _count(path / name) if count is None else count, *_with_defaults(bounds)
        )
        for name, lifetime, span, size, count, *bounds in file_values(actions, _LOG_COLUMNS)
    ]


def _count(path: Path) -> int:
    return sum(rows.num_rows for rows in read(path, [a.GROUP_KEY]))


def _with_defaults(bounds: Sequence[int | None]) -> Iterator[int]:
    return (default if each is None else each for each, default in zip(bounds, _WIDEST_BOUNDS, strict=True))


def of_groups(path: Path, partitions: Collection[Partition], group_keys: Collection[int]) -> list[StoredFile]:
    """Return the files of ``partitions`` that may have messages of any of these groups."""
    wanted, keys = set(partitions), sorted(group_keys)
    return [each for each in stored(path) if each.partition in wanted and are_between(keys, each.least, each.most)]
