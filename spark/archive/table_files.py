"""What the log of the archive's table says of the data files that belong to it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable

from conclave.archive.files import told_of
from spark.archive import columns as a, data_files
from spark.archive.data_files import Partition, are_between

_TOLD = (
    *("path", "partition.lifetime", "partition.span", "size_bytes", "num_records"),
    *("min.group_key", "max.group_key", "min.sequence_num", "max.sequence_num"),
)

_WIDEST = (-(2**63), 2**63 - 1) * 2


@dataclass(frozen=True)
class StoredFile:
    """A file of the table. ``path``: within the table's folder.

    ``least`` and ``most``: of the keys of its groups; ``first`` and ``last``: of the numbers of its messages. They are
    the least and the greatest integers where the log does not say: another program's files are not passed over.
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
    """Return the files of the table at ``path``. Raises what deltalake raises, and ArchiveError."""
    actions = DeltaTable(str(path)).get_add_actions(flatten=True)
    return [
        StoredFile(name, (lifetime, span), size, _count(path / name) if count is None else count, *_wide(bounds))
        for name, lifetime, span, size, count, *bounds in told_of(actions, _TOLD)
    ]


def _count(path: Path) -> int:
    return sum(rows.num_rows for rows in data_files.read(path, [a.GROUP_KEY]))


def _wide(bounds: Sequence[int | None]) -> Iterator[int]:
    return (wide if each is None else each for each, wide in zip(bounds, _WIDEST, strict=True))


def of_groups(path: Path, partitions: Collection[Partition], group_keys: Collection[int]) -> list[StoredFile]:
    """Return the files of ``partitions`` that may have messages of any of these groups."""
    wanted, keys = set(partitions), sorted(group_keys)
    return [each for each in stored(path) if each.partition in wanted and are_between(keys, each.least, each.most)]
