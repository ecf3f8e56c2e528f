"""Checks the archive's files without Spark: each message by its checksum, and all together by the database's index."""

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pyarrow
from deltalake.exceptions import DeltaError
from pyarrow import parquet

from conclave.archive.checksums import checksums
from conclave.archive.consistency import open_table
from conclave.archive.differences import Key, compare
from conclave.archive.faults import one_line
from conclave.archive.scan import batches, by_rows
from conclave.store.archive.moves import PartRow

ROWS_AT_ONCE = 256
"""At most 256 messages of a file are decoded at once: bodies may be large."""

_COLUMNS = ["group_key", "sequence_num", "sender_id", "is_commit", "created_at", "mls_message", "checksum"]

_SUMMARY = (
    "SELECT group_key, lifetime, span, min(sequence_num) AS first_seq, max(sequence_num) AS last_seq,"
    " min(created_at) AS oldest, max(created_at) AS newest, count(*) AS message_count, 0 AS body_bytes,"
    " bit_xor(checksum) AS checksum FROM archive GROUP BY group_key, lifetime, span ORDER BY group_key, span, lifetime"
)


class UnreadableError(Exception):
    """A file cannot be read at all. The message is one line."""


def altered_in(path: Path) -> Counter[int]:
    """Return by group key how many messages of a data file are not as they were archived. Raises UnreadableError."""
    found: Counter[int] = Counter()
    try:
        with parquet.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=_COLUMNS):
                    *columns, stored = (batch.column(name).to_pylist() for name in _COLUMNS)
                    for key, computed, was in zip(
                        columns[0], checksums(zip(*columns, strict=True)), stored, strict=True
                    ):
                        if computed != was:
                            found[key] += 1
    # What is decoded of damaged bytes may lack columns and values.
    except (pyarrow.ArrowException, OSError, KeyError, TypeError, struct.error) as error:
        raise UnreadableError(one_line(error)) from error
    return found


def index_faults(folder: Path, index: Iterable[PartRow]) -> dict[Key, list[str]]:
    """Return how the table in ``folder`` differs from the index, by rows of it. Bodies are not read.

    ``index``: by group, span and lifetime. Both sides may have millions of rows: only what differs is kept. Only after
    a run that came to its end nothing may differ. Raises UnreadableError.
    """
    faults: dict[Key, list[str]] = {}
    try:
        query = by_rows(open_table(folder))
        found = (PartRow(**row) for batch in batches(query, _SUMMARY) for row in batch.to_pylist())
        for _, both in groupby(merge(_placed(index, 0), _placed(found, 1)), key=itemgetter(0)):
            sides: tuple[dict[Key, PartRow], dict[Key, PartRow]] = {}, {}
            for _, side, row in both:
                sides[side][row.group_key, row.lifetime, row.span] = row
            faults |= compare(*sides, {})
    except (DeltaError, pyarrow.ArrowException, OSError) as error:
        raise UnreadableError(one_line(error)) from error
    return faults


def _placed(rows: Iterable[PartRow], side: int) -> Iterator[tuple[Key, int, PartRow]]:
    return (((row.group_key, row.span, row.lifetime), side, row) for row in rows)
