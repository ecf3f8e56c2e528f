"""The archive's table as of one version, to be queried quickly, or by its rows alone once their pages were compared."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conclave.archive.faults import one_line
from conclave.archive.scan import BY_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalake import DeltaTable

_GROUPS = ["group_key"]
_SOUGHT_BY = [*_GROUPS, "sequence_num", "created_at", "sender_id", "is_commit"]
"""The columns by which messages are found. Their pages have checksums, which DataFusion does not look at."""

_TOLD = ("path", "partition.lifetime", "partition.span", "num_records", "min.group_key", "max.group_key")


class UnsoundError(Exception):
    """A file of the table is not as it was written. The message is one line, which begins with its path."""


@dataclass(frozen=True)
class _File:
    path: Path
    rows: int | None
    """What the table's log says; None: it says nothing, as of a file of another program."""
    least: int | None
    most: int | None
    """The keys of its groups, likewise."""

    def may_have(self, group_key: int) -> bool:
        return (self.least is None or self.least <= group_key) and (self.most is None or group_key <= self.most)


class Snapshot:
    """The table as of ``version``."""

    def __init__(self, folder: Path, table: "DeltaTable", settings: dict[str, str]) -> None:
        """``settings``: how DataFusion is to work."""
        from deltalake import QueryBuilder  # noqa: PLC0415 - a server without an archive does not pay for it

        self.version = table.version()
        self.quick = QueryBuilder(settings).register("archive", table)
        """Passes over rows by what files say of them, which has no checksum."""
        self.by_rows = QueryBuilder(settings | BY_ROWS).register("archive", table)
        """Looks at each row of the files."""
        self._folder = folder
        self._added = table.get_add_actions(flatten=True)

    def require_sound(self, partitions: "Iterable[tuple[int, int]]", group_key: int) -> None:
        """Compare pages of the files that may have messages of a group with their checksums, bodies apart.

        ``partitions``: lifetime and span. Raises UnsoundError; FileNotFoundError if a run has replaced a file.
        """
        for partition in partitions:
            for file in self._files.get(partition, ()):
                if file.may_have(group_key):
                    _require_sound(file, group_key)

    @cached_property
    def _files(self) -> dict[tuple[int, int], list[_File]]:
        import pyarrow  # noqa: PLC0415 - a server without an archive does not pay for it

        told = pyarrow.table(self._added)
        unsaid = pyarrow.nulls(told.num_rows)
        columns = ((told[name] if name in told.column_names else unsaid).to_pylist() for name in _TOLD)
        files: dict[tuple[int, int], list[_File]] = {}
        for name, lifetime, span, *of_rows in zip(*columns, strict=True):
            files.setdefault((lifetime, span), []).append(_File(self._folder / name, *of_rows))
        return files


def _require_sound(file: _File, group_key: int) -> None:
    """Read which groups a file's row groups have, and of those with this one what messages are found by.

    Statistics are not looked at. How many rows there are the footer, the columns and the table's log say: all have to
    say the same.
    """
    import pyarrow  # noqa: PLC0415 - a server without an archive does not pay for it
    from pyarrow import parquet  # noqa: PLC0415 - as above

    wanted = pyarrow.array([group_key], pyarrow.int64())

    try:
        with parquet.ParquetFile(file.path, page_checksum_verification=True, pre_buffer=False) as opened:
            said = [opened.metadata.row_group(number).num_rows for number in range(opened.num_row_groups)]
            read = [_rows_of(opened, number, wanted) for number in range(opened.num_row_groups)]
    except FileNotFoundError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, LookupError) as error:
        raise UnsoundError(f"{file.path}: {one_line(error)}") from error
    if read != said or file.rows not in (None, sum(said)):
        told = sum(said) if file.rows is None else file.rows
        raise UnsoundError(f"{file.path}: {sum(read):,} messages are read where it should have {told:,}")


def _rows_of(opened: Any, number: int, wanted: Any) -> int:
    """Return how many rows a row group has, by each column that is read. Raises as pyarrow does, and ValueError."""
    from pyarrow import compute  # noqa: PLC0415 - a server without an archive does not pay for it

    rows = _columns_of(opened, number, _GROUPS)
    if compute.any(compute.is_in(rows.column(0), wanted)).as_py():
        rows = _columns_of(opened, number, _SOUGHT_BY)
    return int(rows.num_rows)


def _columns_of(opened: Any, number: int, names: list[str]) -> Any:
    rows = opened.read_row_group(number, columns=names)
    if sorted(rows.column_names) != sorted(names):
        raise ValueError(f"it lacks one of the columns {', '.join(names)}")
    return rows
