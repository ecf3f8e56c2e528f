"""Runs queries on the archive's table, and hands their rows over a batch at a time."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from conclave.archive import query as queries
from conclave.retention.hidden import Amount, Sought

if TYPE_CHECKING:
    from deltalake import QueryBuilder


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
