"""What the log of the archive's table says of the data files that belong to it."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pyarrow
from deltalake import DeltaTable

from spark.archive.data_files import Partition, are_between

_TOLD = (
    *("path", "partition.lifetime", "partition.span", "size_bytes", "num_records"),
    *("min.group_key", "max.group_key", "min.sequence_num", "max.sequence_num"),
)


@dataclass(frozen=True)
class StoredFile:
    """A file of the table. ``path``: within the table's folder.

    ``least`` and ``most``: of the keys of its groups; ``first`` and ``last``: of the numbers of its messages.
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
    """Return the files of the table at ``path``. Raises what deltalake raises."""
    actions = pyarrow.table(DeltaTable(str(path)).get_add_actions(flatten=True))
    if not actions.num_rows:
        return []  # then there are no columns for statistics
    rows = zip(*(actions[name].to_pylist() for name in _TOLD), strict=True)
    return [StoredFile(name, (lifetime, span), *others) for name, lifetime, span, *others in rows]


def of_groups(path: Path, partitions: Collection[Partition], group_keys: Collection[int]) -> list[StoredFile]:
    """Return the files of ``partitions`` that may have messages of any of these groups."""
    wanted, keys = set(partitions), sorted(group_keys)
    return [each for each in stored(path) if each.partition in wanted and are_between(keys, each.least, each.most)]
