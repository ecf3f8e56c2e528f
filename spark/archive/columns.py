"""Column names and types of the archive's table, and of the plans that are applied to it."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow

from conclave.archive.layout import checksums

LIFETIME = "lifetime"
"""Partition column: the class, in seconds; -1 for keep.

It is the effective expiry of the group when the batch was fixed.
"""

SPAN = "span"
"""Partition column: the first Unix second of the span in which the message was created."""

GROUP_KEY = "group_key"
SEQUENCE_NUM = "sequence_num"
SENDER_ID = "sender_id"
IS_COMMIT = "is_commit"
CREATED_AT = "created_at"
CHECKSUM = "checksum"
SIZE = "size"
"""How many bytes the body has that the client sent: known without reading it."""

BODY = "mls_message"

CHECKED = (GROUP_KEY, SEQUENCE_NUM, SENDER_ID, IS_COMMIT, CREATED_AT, BODY)
"""What the checksum of a message covers, in this order."""

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
"""What a data file has of a message: all but the partition, which its folder names."""

ARCHIVE = pyarrow.schema([(LIFETIME, pyarrow.int64()), (SPAN, pyarrow.int64()), *STORED])
"""The columns of the table."""

MOVING = pyarrow.schema([(LIFETIME, pyarrow.int64()), *STORED])
"""Messages of a batch, as they are read from the hot store."""

_AT_ONCE = 256
"""Values are taken out of Arrow for 256 rows at once: meanwhile no thread goes on, not even one that holds a lock."""


def checksums_of(rows: pyarrow.Table) -> pyarrow.Array:
    """Return the checksums that messages have, which should be those with which they were archived."""
    return pyarrow.array(checksums(values_of(rows, CHECKED)), pyarrow.int64())


def values_of(rows: pyarrow.Table, names: Sequence[str]) -> Iterator[Any]:
    """Yield what each row has in some columns, as a tuple."""
    for some in rows.select(names).to_batches(max_chunksize=_AT_ONCE):
        yield from zip(*(column.to_pylist() for column in some.columns), strict=True)
