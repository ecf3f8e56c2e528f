"""Lists the numbers of the messages in the archive, without reading bodies."""

from collections import defaultdict
from pathlib import Path

from conclave.archive.faults import UnreadableArchiveError, one_line
from conclave.archive.scan import batches, by_rows
from conclave.archive.snapshot import open_table
from conclave.keys.tree import Range

_RANGES_QUERY = (
    "SELECT group_key, min(sequence_num), max(sequence_num) FROM (SELECT group_key, sequence_num,"
    " sequence_num - CAST(row_number() OVER (PARTITION BY group_key ORDER BY sequence_num) AS BIGINT) AS run"
    " FROM archive) GROUP BY group_key, run ORDER BY 1, 2"
)


def in_table(folder: Path) -> dict[int, list[Range]]:
    """Return the numbers of the messages in the table ``folder`` as ascending ranges, by group key.

    Raises UnreadableArchiveError.
    """
    import pyarrow  # noqa: PLC0415 - loaded only if there is an archive
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

    ranges: dict[int, list[Range]] = defaultdict(list)
    try:
        query = by_rows(open_table(folder))
        for batch in batches(query, _RANGES_QUERY):
            for group_key, first, last in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                ranges[group_key].append(Range(first, last))
    except (DeltaError, pyarrow.ArrowException, OSError) as error:
        raise UnreadableArchiveError(f"{folder}: {one_line(error)}") from error
    return dict(ranges)
