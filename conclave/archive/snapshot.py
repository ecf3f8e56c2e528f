"""Opens the archive's table at one version, verifies its pages, and checks that it matches the database.

Table and database do not match if only one of them was restored from a backup. Each run that changes the table starts a
turn. It writes the number of the turn first to the database, then to the table, before it changes anything else. So the
database is at most one turn ahead of the table, and never behind it.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conclave.archive.faults import one_line
from conclave.archive.files import LOG, file_values, log_fault
from conclave.archive.layout import ID_PROPERTY
from conclave.archive.scan import BY_ROWS
from conclave.store.archive.moves import ArchiveState

if TYPE_CHECKING:
    from deltalake import DeltaTable, QueryBuilder


_KEY_COLUMNS = ["group_key", "sequence_num"]
_FILTER_COLUMNS = [*_KEY_COLUMNS, "created_at", "sender_id", "is_commit"]
"""The columns that queries filter by. Their pages have checksums, which DataFusion does not verify."""

_FILE_VALUES = (
    *("path", "partition.lifetime", "partition.span", "num_records"),
    *("min.group_key", "max.group_key", "min.sequence_num", "max.sequence_num"),
)


class DamagedFileError(Exception):
    """A file of the table is damaged. The message is one line that starts with its path."""


class StaleSnapshotError(Exception):
    """The table was updated to a later version, so this snapshot cannot be queried any more."""


@dataclass(frozen=True)
class MessageRange:
    """A range of messages of one group: numbers greater than ``after`` and at most ``last``."""

    partitions: frozenset[tuple[int, int]]
    """The lifetime and span of each partition that may have them."""
    group_key: int
    after: int
    last: int
    excluded: tuple[int, ...] = ()
    """Numbers that do not count."""


@dataclass(frozen=True)
class _DataFile:
    """A data file with its values from the table's log. A value is None if another program wrote the file."""

    path: Path
    rows: int | None
    min_group: int | None
    max_group: int | None
    first: int | None
    last: int | None
    """The least and greatest numbers of its messages."""

    def may_have(self, message_range: MessageRange) -> bool:
        return _overlap(self.min_group, self.max_group, message_range.group_key, message_range.group_key) and _overlap(
            self.first, self.last, message_range.after + 1, message_range.last
        )


def _overlap(least: int | None, most: int | None, first: int, last: int) -> bool:
    return (least is None or least <= last) and (most is None or first <= most)


class Snapshot:
    """The table at ``version``."""

    def __init__(self, folder: Path, table: "DeltaTable", settings: dict[str, str]) -> None:
        """``settings``: the settings of DataFusion."""
        self.version = table.version()
        self._folder, self._table, self._settings = folder, table, settings
        self._added = table.get_add_actions(flatten=True)
        self.quick = self._query({})
        """Skips rows by statistics of files, which have no checksum."""

    def count(self, message_range: MessageRange) -> int:
        """Return how many messages are in the range, visible or not, verifying the checksums of pages.

        Raises DamagedFileError, or OSError if a file cannot be read or a run has replaced it.
        """
        import pyarrow  # noqa: PLC0415 - loaded only if there is an archive

        files = (file for partition in sorted(message_range.partitions) for file in self._files.get(partition, ()))
        try:
            return sum(_count_in(file, message_range) for file in files if file.may_have(message_range))
        finally:
            pyarrow.default_memory_pool().release_unused()  # it would keep 10 MB

    def by_rows(self) -> "QueryBuilder":
        """Return a query builder that reads all rows, see BY_ROWS. Raises StaleSnapshotError.

        Each call creates a new one: a query builder caches file metadata, and a damaged file may have been replaced by
        a copy.
        """
        query = self._query(BY_ROWS)
        if self._table.version() != self.version:
            raise StaleSnapshotError("the table has changed in between")
        return query

    def _query(self, overrides: dict[str, str]) -> "QueryBuilder":
        from deltalake import QueryBuilder  # noqa: PLC0415 - loaded only if there is an archive

        return QueryBuilder(self._settings | overrides).register("archive", self._table)

    @cached_property
    def _files(self) -> dict[tuple[int, int], list[_DataFile]]:
        files: dict[tuple[int, int], list[_DataFile]] = {}
        for name, lifetime, span, *of_rows in file_values(self._added, _FILE_VALUES):
            files.setdefault((lifetime, span), []).append(_DataFile(self._folder / name, *of_rows))
        return files


def _count_in(file: _DataFile, message_range: MessageRange) -> int:
    """Return how many messages of the range a file has. Raises DamagedFileError and OSError.

    Does not use statistics. The row counts of the footer, the columns and the table's log must agree.
    """
    import pyarrow  # noqa: PLC0415 - loaded only if there is an archive
    from pyarrow import parquet  # noqa: PLC0415 - as above

    # As scalars: for a Python number, pyarrow tries to import pandas each time.
    bounds = [
        pyarrow.scalar(each, pyarrow.int64())
        for each in (message_range.group_key, message_range.after, message_range.last)
    ]
    bounds.append(pyarrow.array(message_range.excluded, pyarrow.int64()))
    try:
        with parquet.ParquetFile(file.path, page_checksum_verification=True, pre_buffer=False) as parquet_file:
            expected = [
                parquet_file.metadata.row_group(number).num_rows for number in range(parquet_file.num_row_groups)
            ]
            counts = [_counts_in(parquet_file, number, bounds) for number in range(parquet_file.num_row_groups)]
    except pyarrow.ArrowMemoryError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, LookupError) as error:
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # an error of the system; pyarrow's errors of damage have no errno
            raise
        raise DamagedFileError(f"{file.path}: {one_line(error)}") from error
    read_rows, matching = [each[0] for each in counts], sum(each[1] for each in counts)
    if read_rows != expected or file.rows not in (None, sum(expected)):
        total = sum(expected) if file.rows is None else file.rows
        raise DamagedFileError(f"{file.path}: has {sum(read_rows):,} messages instead of {total:,}")
    return matching


def _counts_in(parquet_file: Any, number: int, bounds: list[Any]) -> tuple[int, int]:
    """Return how many rows a row group has, and how many match. Raises pyarrow's errors and ValueError.

    ``bounds``: the group, ``after``, ``last`` and the excluded numbers, as pyarrow values.
    """
    from pyarrow import compute  # noqa: PLC0415 - loaded only if there is an archive

    rows = _columns_of(parquet_file, number, _KEY_COLUMNS)
    numbers = rows["sequence_num"].filter(compute.equal(rows["group_key"], bounds[0]))
    above, up_to = compute.greater(numbers, bounds[1]), compute.less_equal(numbers, bounds[2])
    counts = compute.and_not(compute.and_(above, up_to), compute.is_in(numbers, bounds[3]))
    matching = compute.sum(counts).as_py() or 0  # the sum of no rows is None
    if matching:
        rows = _columns_of(parquet_file, number, _FILTER_COLUMNS)  # verifies the checksums of these pages
    return rows.num_rows, matching


def _columns_of(parquet_file: Any, number: int, names: list[str]) -> Any:
    rows = parquet_file.read_row_group(number, columns=names, use_threads=False)
    if sorted(rows.column_names) != sorted(names):
        raise ValueError(f"lacks one of the columns {', '.join(names)}")
    return rows


_RANDOM_BITS = 32
"""The random bits of a turn, so that two databases restored from one backup have different turns."""

TRIES = 3
"""How many times to compare table and database without the run lock, since a run may change both at the same time."""


def next_turn(turn: int) -> int:
    """Return the number of the turn after ``turn``: greater, less than 2 ** 63, and partly random."""
    return ((turn >> _RANDOM_BITS) + 1 << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)


def turn_app(archive_id: str) -> str:
    """Return the application id under which the table's log stores its turn."""
    return f"{archive_id}.turn"


def turn_of(table: "DeltaTable", archive_id: str) -> int:
    """Return the number of the table's last turn; 0 if it has none."""
    return table.transaction_version(turn_app(archive_id)) or 0


def open_table(path: Path, version: int | None = None) -> "DeltaTable":
    """Open the table at ``version``; None: the newest one.

    Raises deltalake's errors. For a damaged log entry, the error names the file and the remedy.
    """
    from deltalake import DeltaTable  # noqa: PLC0415 - loaded only if there is an archive
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

    try:
        return DeltaTable(str(path), version=version)
    except DeltaError as error:
        if fault := log_fault(path / LOG):
            raise DeltaError(fault) from error
        raise


def open_known(path: Path, read_state: Callable[[], ArchiveState]) -> tuple["DeltaTable", str]:
    """Open the table. Return it, and the reason why it does not match the database or "", see ``find_fault``.

    ``read_state``: reads the state of the archive from the database. Raises the errors of deltalake and ``read_state``.
    """
    for _ in range(TRIES):
        table = open_table(path)
        fault = find_fault(path, table, read_state())
        if not fault:
            break
    return table, fault


def find_fault(path: Path, table: "DeltaTable", state: ArchiveState) -> str:
    """Return in one line why ``table`` does not match the database, or "".

    ``state``: read after the table was opened. Without the run lock, a run may have changed both in between, so only a
    repeated result is a fault.
    """
    if table.metadata().configuration.get(ID_PROPERTY) != state.archive_id:
        return f"{path}: belongs to another database"
    turn, version = turn_of(table, state.archive_id), table.version()
    if turn in (state.turn, state.former_turn) and version >= state.version:
        return ""
    return mismatch_text(path, is_newer=turn > state.turn)


def mismatch_text(path: Path, *, is_newer: bool) -> str:
    """Return the error for a table that is newer or older than the database."""
    return (
        f"{path}: is {'newer' if is_newer else 'older'} than the database;"
        " if one of them was restored from a backup, restore both from the same one"
    )
