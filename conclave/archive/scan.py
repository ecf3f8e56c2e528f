"""Runs queries on the archive's table, and hands their rows over a batch at a time."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from conclave.archive import query as queries
from conclave.retention.hidden import Amount, Sought

if TYPE_CHECKING:
    from deltalake import DeltaTable, QueryBuilder


BY_ROWS = {
    "datafusion.execution.parquet.pruning": "false",
    "datafusion.execution.parquet.enable_page_index": "false",
    "datafusion.execution.parquet.bloom_filter_on_read": "false",
}
"""Settings of DataFusion with which it passes over no rows of a file but by looking at them.

What a file says of its pages has no checksum: by a damaged minimum, rows would be passed over that are sought.
"""


def by_rows(table: "DeltaTable") -> "QueryBuilder":
    """Return what queries ``table`` as ``archive``, and passes over no rows of a file but by looking at them."""
    from deltalake import QueryBuilder  # noqa: PLC0415 - where it is used

    return QueryBuilder(BY_ROWS).register("archive", table)


def batches(query: "QueryBuilder", sql: str) -> Iterator[Any]:
    """Run ``sql`` through pyarrow: deltalake's own reader would hold Python's lock while DataFusion works.

    Nor has it a class of its own for the error of a damaged file. Raises ArrowException, DeltaError and OSError.
    """
    import pyarrow  # noqa: PLC0415 - as deltalake, where it is used

    with pyarrow.RecordBatchReader.from_stream(query.execute(sql)) as reader:
        yield from reader


def amount(query: "QueryBuilder", sought: Sought) -> Amount:
    """Count the messages of ``sought``. Raises as ``batches`` does."""
    (row,) = (row for batch in batches(query, queries.tally(sought)) for row in batch.to_pylist())
    return sought.sums.amount(row.values())
