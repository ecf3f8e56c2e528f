"""The archive's table as of one version, to be queried quickly, or by its rows alone once their pages were compared.

A snapshot is used only if the table and the database belong to the same moment. They do not if only one of them was
restored from a backup. Each run that changes the table begins a turn. The database has the number of the turn before
the table has it, and the table has it before the run changes anything else. So the database is at most one turn ahead
of the table, and never behind it.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conclave.archive.faults import one_line
from conclave.archive.files import LOG, log_fault, told_of
from conclave.archive.layout import ID_PROPERTY
from conclave.archive.scan import BY_ROWS
from conclave.store.archive.moves import ArchiveState

if TYPE_CHECKING:
    from deltalake import DeltaTable, QueryBuilder
if TYPE_CHECKING:
    from deltalake import DeltaTable


_PLACED_BY = ["group_key", "sequence_num"]
_SOUGHT_BY = [*_PLACED_BY, "created_at", "sender_id", "is_commit"]
"""The columns by which messages are found. Their pages have checksums, which DataFusion does not look at."""

_TOLD = (
    *("path", "partition.lifetime", "partition.span", "num_records"),
    *("min.group_key", "max.group_key", "min.sequence_num", "max.sequence_num"),
)


class UnsoundError(Exception):
    """A file of the table is not as it was written. The message is one line, which begins with its path."""


class MovedOnError(Exception):
    """The table's handle knows a later version by now, so this one is not to be had by it."""


@dataclass(frozen=True)
class Place:
    """Messages of one group, and where they are: numbers greater than ``after`` and at most ``last``."""

    partitions: frozenset[tuple[int, int]]
    """Lifetime and span of each."""
    group_key: int
    after: int
    last: int
    left_out: tuple[int, ...] = ()
    """Numbers that do not count."""


@dataclass(frozen=True)
class _File:
    """What the table's log says of a file; None: nothing, as of one that another program has written."""

    path: Path
    rows: int | None
    least: int | None
    most: int | None
    """The keys of its groups."""
    first: int | None
    last: int | None
    """The numbers of its messages."""

    def may_have(self, place: Place) -> bool:
        return _meet(self.least, self.most, place.group_key, place.group_key) and _meet(
            self.first, self.last, place.after + 1, place.last
        )


def _meet(least: int | None, most: int | None, first: int, last: int) -> bool:
    return (least is None or least <= last) and (most is None or first <= most)


class Snapshot:
    """The table as of ``version``."""

    def __init__(self, folder: Path, table: "DeltaTable", settings: dict[str, str]) -> None:
        """``settings``: how DataFusion is to work."""
        self.version = table.version()
        self._folder, self._table, self._settings = folder, table, settings
        self._added = table.get_add_actions(flatten=True)
        self.quick = self._query({})
        """Passes over rows by what files say of them, which has no checksum."""

    def count(self, place: Place) -> int:
        """Return how many messages there are at ``place``, seen or not, by pages that have their checksums.

        Raises UnsoundError; OSError if the system does not let a file be read, or a run has replaced it.
        """
        import pyarrow  # noqa: PLC0415 - a server without an archive does not pay for it

        files = (file for partition in sorted(place.partitions) for file in self._files.get(partition, ()))
        try:
            return sum(_count_in(file, place) for file in files if file.may_have(place))
        finally:
            pyarrow.default_memory_pool().release_unused()  # it would keep 10 MB

    def by_rows(self) -> "QueryBuilder":
        """Return what looks at each row of the files.

        It is made anew each time: a query remembers what files said of themselves when it came to them first, and a
        whole copy may have taken the place of one that is not. Raises MovedOnError.
        """
        query = self._query(BY_ROWS)
        if self._table.version() != self.version:
            raise MovedOnError("the table has changed meanwhile")
        return query

    def _query(self, changed: dict[str, str]) -> "QueryBuilder":
        from deltalake import QueryBuilder  # noqa: PLC0415 - a server without an archive does not pay for it

        return QueryBuilder(self._settings | changed).register("archive", self._table)

    @cached_property
    def _files(self) -> dict[tuple[int, int], list[_File]]:
        files: dict[tuple[int, int], list[_File]] = {}
        for name, lifetime, span, *of_rows in told_of(self._added, _TOLD):
            files.setdefault((lifetime, span), []).append(_File(self._folder / name, *of_rows))
        return files


def _count_in(file: _File, place: Place) -> int:
    """Read which numbers of which groups a file has, and where some are sought all that messages are found by.

    Statistics are not looked at. How many rows there are the footer, the columns and the table's log say: all have to
    say the same.
    """
    import pyarrow  # noqa: PLC0415 - a server without an archive does not pay for it
    from pyarrow import parquet  # noqa: PLC0415 - as above

    # Of a number of Python's pyarrow looks for pandas, each time.
    bounds = [pyarrow.scalar(each, pyarrow.int64()) for each in (place.group_key, place.after, place.last)]
    bounds.append(pyarrow.array(place.left_out, pyarrow.int64()))
    try:
        with parquet.ParquetFile(file.path, page_checksum_verification=True, pre_buffer=False) as opened:
            said = [opened.metadata.row_group(number).num_rows for number in range(opened.num_row_groups)]
            counts = [_counts_in(opened, number, bounds) for number in range(opened.num_row_groups)]
    except pyarrow.ArrowMemoryError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, LookupError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the system's: of damage pyarrow gives no number
            raise
        raise UnsoundError(f"{file.path}: {one_line(error)}") from error
    read, sought = [each[0] for each in counts], sum(each[1] for each in counts)
    if read != said or file.rows not in (None, sum(said)):
        told = sum(said) if file.rows is None else file.rows
        raise UnsoundError(f"{file.path}: {sum(read):,} messages are read where it should have {told:,}")
    return sought


def _counts_in(opened: Any, number: int, bounds: list[Any]) -> tuple[int, int]:
    """Return how many rows a row group has, and how many that are sought. Raises as pyarrow does, and ValueError.

    ``bounds``: group, after, last and what is left out of what is sought, as pyarrow has them.
    """
    from pyarrow import compute  # noqa: PLC0415 - a server without an archive does not pay for it

    rows = _columns_of(opened, number, _PLACED_BY)
    numbers = rows["sequence_num"].filter(compute.equal(rows["group_key"], bounds[0]))
    above, up_to = compute.greater(numbers, bounds[1]), compute.less_equal(numbers, bounds[2])
    counts = compute.and_not(compute.and_(above, up_to), compute.is_in(numbers, bounds[3]))
    sought = compute.sum(counts).as_py() or 0  # none: of no rows at all there is no sum
    if sought:
        rows = _columns_of(opened, number, _SOUGHT_BY)
    return rows.num_rows, sought


def _columns_of(opened: Any, number: int, names: list[str]) -> Any:
    rows = opened.read_row_group(number, columns=names, use_threads=False)
    if sorted(rows.column_names) != sorted(names):
        raise ValueError(f"it lacks one of the columns {', '.join(names)}")
    return rows


_CHANCE_BITS = 32
"""A turn's number has 32 random bits, so that two databases restored from one backup count differently."""

TRIES = 3
"""Table and database are compared at most 3 times where no lock is held: a run may change both meanwhile."""


def next_turn(turn: int) -> int:
    """Return the number of the turn after ``turn``: greater, less than 2 ** 63, and with a random part."""
    return ((turn >> _CHANCE_BITS) + 1 << _CHANCE_BITS) | secrets.randbits(_CHANCE_BITS)


def turn_app(archive_id: str) -> str:
    """Return the name under which the table's log keeps its turn."""
    return f"{archive_id}.turn"


def turn_of(table: "DeltaTable", archive_id: str) -> int:
    """Return the number of the last turn that the table has; 0 if it has none."""
    return table.transaction_version(turn_app(archive_id)) or 0


def open_table(path: Path, version: int | None = None) -> "DeltaTable":
    """Open the table as of ``version``; None: the newest one.

    Raises what deltalake raises. Of a damaged entry of the log that has only what is wrong there, without the file's
    name; here it names the file, and what to do.
    """
    from deltalake import DeltaTable  # noqa: PLC0415 - a server without an archive does not pay for it
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

    try:
        return DeltaTable(str(path), version=version)
    except DeltaError as error:
        if fault := log_fault(path / LOG):
            raise DeltaError(fault) from error
        raise


def open_known(path: Path, read_state: Callable[[], ArchiveState]) -> tuple["DeltaTable", str]:
    """Open the table; return it, and why it is not the one that the database knows, see ``find_fault``.

    ``read_state`` asks the database what it knows. Raises what deltalake and ``read_state`` raise.
    """
    for _ in range(TRIES):
        table = open_table(path)
        fault = find_fault(path, table, read_state())
        if not fault:
            break
    return table, fault


def find_fault(path: Path, table: "DeltaTable", state: ArchiveState) -> str:
    """Return in one line why ``table`` is not the one that the database knows; "" if it is.

    ``state`` was read after the table was opened. Without the run lock, a run may have changed both in between: then
    only what is found again and again is a fault.
    """
    if table.metadata().configuration.get(ID_PROPERTY) != state.archive_id:
        return f"{path}: is the archive of another database"
    turn, version = turn_of(table, state.archive_id), table.version()
    if turn in (state.turn, state.former_turn) and version >= state.version:
        return ""
    return not_of_one_time(path, is_newer=turn > state.turn)


def not_of_one_time(path: Path, *, is_newer: bool) -> str:
    """Return in one line what an operator is told if table and database do not belong together."""
    return (
        f"{path}: is {'newer' if is_newer else 'older'} than the database;"
        " if one of them was restored from a backup, restore both from the same one"
    )
