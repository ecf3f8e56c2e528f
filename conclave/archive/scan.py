"""Builds and runs queries of the archive's table.

Loads the libraries that read the archive on the first read, with few threads and heaps.
"""

import math
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from conclave.archive.layout import in_partitions
from conclave.retention.hidden import ArchiveCount, MessageTotals
from conclave.retention.stretches import Part, Stretch

if TYPE_CHECKING:
    from deltalake import DeltaTable, QueryBuilder


COLUMNS = "sequence_num, sender_id, mls_message, created_at"
"""The first columns of a query, in the order of MessageRow.

``is_kept`` follows, then ``is_commit`` and ``checksum`` to verify the checksum.
"""


def estimate_last(parts: Sequence[Part], after: int, border: int, count: int, room: int) -> int:
    """Estimate up to which number to search for ``count`` messages, or ``room`` bytes of bodies, after ``after``.

    At most ``border``. Exact if no number is missing and all bodies have the same size; otherwise possibly too low.
    """
    messages, size = float(count), float(room)
    for part in parts:
        first = max(part.first_seq, after + 1)
        if first > part.last_seq or not part.message_count:  # an aborted run has erased all of it
            continue
        density = part.message_count / (part.last_seq - part.first_seq + 1)
        mean_bytes = max(1.0, part.body_bytes / part.message_count)
        needed = max(1.0, min(messages, size / mean_bytes))
        available = (part.last_seq - first + 1) * density
        if available >= needed:
            return min(border, first - 1 + math.ceil(needed / density))
        messages -= available
        size -= available * mean_bytes
    return border


def parts_between(parts: Sequence[Part], after: int, last: int) -> list[Part]:
    """Return the parts that may have messages with numbers greater than ``after`` and at most ``last``."""
    return [part for part in parts if part.last_seq > after and part.first_seq <= last]


def max_between(parts: Sequence[Part], after: int, last: int) -> int:
    """Return how many messages ``parts`` can have with numbers greater than ``after`` and at most ``last``.

    ``parts``: ordered by first number; they may overlap.
    """
    count, counted_to = 0, after
    for part in parts:
        first, end = max(part.first_seq, counted_to + 1), min(part.last_seq, last)
        if first <= end:
            count, counted_to = count + end - first + 1, end
    return count


def select(stretch: Stretch, parts: Sequence[Part], after: int, last: int, first_only: int | None = None) -> str:
    """Return the query for the messages of ``parts`` with numbers greater than ``after`` and at most ``last``.

    ``first_only``: select only this number of messages, in order; None: select all, in any order.
    """
    return (
        f"SELECT {COLUMNS}, {stretch.visibility.kept} AS is_kept, is_commit, checksum FROM archive"
        f" WHERE {_where(stretch, parts, after, last)}"
        f"{'' if first_only is None else f' ORDER BY sequence_num LIMIT {first_only:d}'}"
    )


def numbers(stretch: Stretch, parts: Sequence[Part], after: int, last: int) -> str:
    """Return the query for the numbers of the messages of ``select``, in any order."""
    return f"SELECT sequence_num FROM archive WHERE {_where(stretch, parts, after, last)}"


def of_sender(stretch: Stretch, sender_id: bytes) -> str:
    """Return the query for the messages of ``stretch`` from one sender, in any order."""
    where = _where(stretch, stretch.parts, stretch.after, stretch.border)
    return (
        "SELECT sequence_num, created_at, is_commit, mls_message, checksum FROM archive"
        f" WHERE {where} AND sender_id = X'{sender_id.hex()}'"
    )


def of_sender_anywhere(sender_id: bytes) -> str:
    """Return the query for all messages from one sender, in any order, including hidden ones."""
    return (
        "SELECT group_key, sequence_num, created_at, is_commit, mls_message, checksum FROM archive"
        f" WHERE sender_id = X'{sender_id.hex()}'"
    )


def facts(stretch: Stretch) -> str:
    """Return the query for the messages of ``stretch`` without bodies, in any order."""
    where = _where(stretch, stretch.parts, stretch.after, stretch.border)
    return f"SELECT created_at, sender_id, is_commit FROM archive WHERE {where}"


def hidden(archive_count: ArchiveCount) -> str:
    """Return the condition for the messages of ``archive_count``."""
    stretch, horizon = archive_count.stretch, archive_count.horizon
    aged = f"created_at < {horizon.before:d} AND NOT {horizon.is_kept(str(horizon.commits_above))}"
    return (
        f"{_where(stretch, stretch.parts, stretch.after, stretch.border)}"
        f" AND (sequence_num <= {horizon.gone:d} OR ({aged}))"
    )


def _where(stretch: Stretch, parts: Sequence[Part], after: int, last: int) -> str:
    """Return the condition for the visible messages."""
    deleted = ", ".join(f"X'{sender.hex()}'" for sender in stretch.deleted_senders)
    return (
        f"{in_partitions((part.lifetime, part.span) for part in parts)} AND group_key = {stretch.group_key:d}"
        f" AND sequence_num <= {last:d} AND {stretch.visibility.condition(after, deleted)}"
        f"{_without_taken_back(stretch, after, last)}"
    )


def _without_taken_back(stretch: Stretch, after: int, last: int) -> str:
    """Return the condition that excludes taken back messages in the range, unless they are included."""
    excluded = () if stretch.include_redacted else sorted(n for n in stretch.taken_back if after < n <= last)
    return f" AND sequence_num NOT IN ({', '.join(map(str, excluded))})" if excluded else ""


BY_ROWS = {
    "datafusion.execution.parquet.pruning": "false",
    "datafusion.execution.parquet.enable_page_index": "false",
    "datafusion.execution.parquet.bloom_filter_on_read": "false",
}
"""DataFusion settings that disable skipping rows by statistics.

Statistics of a file have no checksum: a damaged minimum would skip matching rows.
"""


def by_rows(table: "DeltaTable") -> "QueryBuilder":
    """Return a query builder with ``table`` as ``archive`` that does not use statistics, see BY_ROWS."""
    from deltalake import QueryBuilder  # noqa: PLC0415 - loaded only if there is an archive

    return QueryBuilder(BY_ROWS).register("archive", table)


def batches(query: "QueryBuilder", sql: str) -> Iterator[Any]:
    """Run ``sql`` and yield its batches. Raises ArrowException, DeltaError and OSError.

    Uses pyarrow's reader, since deltalake's holds the GIL and has no error class for damaged files.
    """
    import pyarrow  # noqa: PLC0415 - loaded only if there is an archive

    with pyarrow.RecordBatchReader.from_stream(query.execute(sql)) as reader:
        yield from reader


def totals(query: "QueryBuilder", archive_count: ArchiveCount) -> MessageTotals:
    """Count the messages of ``archive_count``. Raises the errors of ``batches``."""
    sql = f"SELECT {archive_count.aggregates.sql} FROM archive WHERE {hidden(archive_count)}"
    (row,) = (row for batch in batches(query, sql) for row in batch.to_pylist())
    return archive_count.aggregates.totals(row.values())


CONCURRENT_READS = 2
"""The maximum number of concurrent reads of the archive, which leaves most processors to other requests."""

_ENVIRONMENT = {
    "TOKIO_WORKER_THREADS": str(CONCURRENT_READS),
    # Return memory to the system after 0.5 s instead of 10 s, and use few heaps.
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:500,muzzy_decay_ms:0,narenas:2",
}
"""Environment variables for deltalake, set only while it is loaded."""

_loading = threading.Lock()


def load() -> tuple[type[Exception], ...]:
    """Load the libraries that read the archive, and return the types of their errors."""
    with _loading:  # the first reads may be concurrent
        return _loaded()


@cache
def _loaded() -> tuple[type[Exception], ...]:
    added = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        import pyarrow  # noqa: PLC0415 - loaded only if there is an archive
        from deltalake import DeltaTable  # noqa: PLC0415 - as above
        from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

        DeltaTable.is_deltatable(tempfile.gettempdir())  # starts the library's threads, which read the variables
    finally:
        for name in added:
            del os.environ[name]
    return DeltaError, pyarrow.ArrowException, OSError
