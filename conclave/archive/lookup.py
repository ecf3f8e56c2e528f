"""Finds one message in the archive for an operator, without its body."""

from collections.abc import Callable, Sequence
from pathlib import Path

from conclave.archive.faults import one_line
from conclave.archive.layout import in_partitions
from conclave.archive.scan import batches, by_rows
from conclave.archive.snapshot import open_known
from conclave.retention.fate import MessageFacts
from conclave.store.archive.moves import ArchiveState
from conclave.store.views.explain import ArchiveReadError


def find(
    path: Path,
    read_state: Callable[[], ArchiveState],
    group_key: int,
    number: int,
    partitions: Sequence[tuple[int, int]],
) -> MessageFacts | None:
    """Return the message ``number`` of a group; None if it is not in the archive.

    ``path``: the table's folder. ``read_state``: reads the state of the table from the database. ``partitions``: class
    and span of the partitions to search. Raises ArchiveReadError.
    """
    import pyarrow  # noqa: PLC0415 - loaded only by commands that read the archive
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

    query = (
        f"SELECT created_at, sender_id, is_commit FROM archive WHERE {in_partitions(partitions)}"
        f" AND group_key = {group_key:d} AND sequence_num = {number:d}"
    )
    try:
        table, fault = open_known(path, read_state)
        if fault:
            raise ArchiveReadError(fault)
        rows = [row for each in batches(by_rows(table), query) for row in each.to_pylist()]
    except (DeltaError, pyarrow.ArrowException, OSError) as error:
        raise ArchiveReadError(f"{path}: {one_line(error)}") from error
    return MessageFacts(rows[0]["created_at"], rows[0]["sender_id"], rows[0]["is_commit"]) if rows else None
