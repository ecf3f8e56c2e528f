"""The column names and types of the archive's table and of its plans."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow

from conclave.archive.layout import checksums

LIFETIME = "lifetime"
"""Partition column: the effective expiry of the group, in seconds, when the batch was fixed; -1 for keep."""

SPAN = "span"
"""Partition column: the first Unix second of the span in which the message was created."""

GROUP_KEY = "group_key"
SEQUENCE_NUM = "sequence_num"
SENDER_ID = "sender_id"
IS_COMMIT = "is_commit"
CREATED_AT = "created_at"
CHECKSUM = "checksum"
SIZE = "size"
"""The bytes of the body before encryption."""

BODY = "mls_message"

CHECKED = (GROUP_KEY, SEQUENCE_NUM, SENDER_ID, IS_COMMIT, CREATED_AT, BODY)
"""The columns that the checksum covers, in order."""

STORED = pyarrow.schema(
    [
        (GROUP_KEY, pyarrow.int64()),
        (SEQUENCE_NUM, pyarrow.int64()),
        (SENDER_ID, pyarrow.binary()),
        (IS_COMMIT, pyarrow.bool_()),
        (CREATED_AT, pyarrow.int64()),
        (CHECKSUM, pyarrow.int64()),
        (SIZE, pyarrow.int64()),
        (BODY, pyarrow.binary()),
    ]
)
"""The columns of a data file: all except the partition columns."""

ARCHIVE = pyarrow.schema([(LIFETIME, pyarrow.int64()), (SPAN, pyarrow.int64()), *STORED])
"""The columns of the table."""

MOVING = pyarrow.schema([(LIFETIME, pyarrow.int64()), *STORED])
"""The columns of a batch that is read from the hot store."""

_BATCH_ROWS = 256
"""How many rows to convert from Arrow at once. The conversion blocks all threads, even one that holds a lock."""


def checksums_of(rows: pyarrow.Table) -> pyarrow.Array:
    """Compute the checksums of messages."""
    return pyarrow.array(checksums(values_of(rows, CHECKED)), pyarrow.int64())


def values_of(rows: pyarrow.Table, names: Sequence[str]) -> Iterator[Any]:
    """Yield the values of some columns as a tuple for each row."""
    for batch in rows.select(names).to_batches(max_chunksize=_BATCH_ROWS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
