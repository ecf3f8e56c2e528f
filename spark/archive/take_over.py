"""Takes over archived messages that were stored before there were keys: a partition after the other, file by file.

The driver reads a file, encrypts, and has Spark replace these messages: executors get no keys. Until the index is
settled readers try whether a message opens by its key, see ``at_rest.opened``. So a run that dies in between leaves
nothing that cannot be read, and the next one finds what is encrypted already.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from pyspark.sql import SparkSession, functions as F

from conclave.archive import checksums
from conclave.archive.checksums import DamagedError
from conclave.archive.layout import in_partitions
from conclave.failpoints import reach
from conclave.keys.file import KeyFileError
from conclave.keys.store import KeyStore
from conclave.store import at_rest
from conclave.store.archive import moves
from conclave.store.engine.sqlite import Step, done
from conclave.store.resources import taking_over
from conclave.store.resources.taking_over import PlainGroup
from spark.archive import columns as a
from spark.archive.clock import Key, index_of
from spark.archive.table import Table
from spark.hot_store import ArchiveError, Hot

PIECE_BYTES = 32 * 1024 * 1024
"""Messages with at most about 32 MiB of bodies are replaced at once: each task has them in memory."""

_READ = [a.GROUP_KEY, a.SEQUENCE_NUM, a.SENDER_ID, a.IS_COMMIT, a.CREATED_AT, a.CHECKSUM, a.BODY]

Row = dict[str, Any]


def take_over(spark: SparkSession, hot: Hot, table: Table, keys: KeyStore, lifetime: int, span: int) -> None:
    """Have no message of a partition lie as it came. The table's turn has begun. Raises ArchiveError."""
    groups = hot.read(taking_over.of_partition, lifetime, span)
    first = table.version() + 1
    table.require_all_read([(lifetime, span)])
    try:
        for path in table.files_of(lifetime, span):
            for piece in _pieces(path, groups):
                _replace(spark, table, (lifetime, span), _encrypted(keys, groups, piece))
    except KeyFileError as error:
        raise ArchiveError(str(error)) from error
    table.make_durable(first)
    found = index_of(table, {(key, lifetime, span) for key in groups}) if groups else {}
    version = table.version()

    def steps(connection: Any) -> Iterator[Step]:
        yield partial(done, moves.note_version, connection, version)
        for key in groups:
            part: Key = (key, lifetime, span)
            yield partial(done, moves.settle_parts, connection, key, {part: found.get(part)})
        yield partial(done, taking_over.strike, connection, lifetime, span)

    hot.write_steps(steps)
    reach("keying.partition_settled")


def _pieces(path: Path, groups: Mapping[int, PlainGroup]) -> Iterator[list[Row]]:
    """Yield the messages of a file that may lie as they came. A damaged one stays as it is: it is never served."""
    piece: list[Row] = []
    size = 0
    for batch in pyarrow.parquet.ParquetFile(path, page_checksum_verification=True).iter_batches(columns=_READ):
        for row in batch.to_pylist():
            group = groups.get(row[a.GROUP_KEY])
            if group and row[a.SEQUENCE_NUM] <= group.keyed_after and _is_sound(row):
                piece.append(row)
                size += len(row[a.BODY])
        if size > PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _is_sound(row: Row) -> bool:
    try:
        checksums.require_sound(*_checked(row, row[a.BODY]), row[a.CHECKSUM], is_commit=row[a.IS_COMMIT])
    except DamagedError:
        return False
    return True


def _checked(row: Row, body: bytes) -> tuple[int, int, bytes, int, bytes]:
    return row[a.GROUP_KEY], row[a.SEQUENCE_NUM], row[a.SENDER_ID], row[a.CREATED_AT], body


def _encrypted(keys: KeyStore, groups: Mapping[int, PlainGroup], piece: list[Row]) -> list[Row]:
    """Return what is to be replaced: messages that were not encrypted yet, as they are then."""
    keys.begin((groups[row[a.GROUP_KEY]].group_id, row[a.SEQUENCE_NUM]) for row in piece)
    of_groups: dict[int, list[Row]] = {}
    for row in piece:
        of_groups.setdefault(row[a.GROUP_KEY], []).append(row)
    found = []
    for group_key, rows in of_groups.items():
        numbers, stored = [row[a.SEQUENCE_NUM] for row in rows], [row[a.BODY] for row in rows]
        fresh = at_rest.taken_over(keys, groups[group_key].group_id, numbers, stored)
        for row, body in zip(rows, fresh, strict=True):
            if body is not row[a.BODY]:
                checksum = checksums.checksum(*_checked(row, body), is_commit=row[a.IS_COMMIT])
                found.append({**row, a.BODY: body, a.CHECKSUM: checksum})
    return found


def _replace(spark: SparkSession, table: Table, partition: tuple[int, int], rows: list[Row]) -> None:
    if not rows:
        return
    names = (a.GROUP_KEY, a.SEQUENCE_NUM, a.CHECKSUM, a.BODY)
    numbers, keys = [row[a.SEQUENCE_NUM] for row in rows], [row[a.GROUP_KEY] for row in rows]
    source = spark.createDataFrame(pyarrow.table({name: [row[name] for row in rows] for name in names}))
    F.broadcast(source).createOrReplaceTempView("taken_over")
    try:
        merged = spark.sql(
            f"MERGE INTO {table.name} AS stored USING taken_over AS fresh"
            f" ON {in_partitions([partition], 'stored.')}"
            f" AND stored.{a.GROUP_KEY} BETWEEN {min(keys)} AND {max(keys)}"
            f" AND stored.{a.SEQUENCE_NUM} BETWEEN {min(numbers)} AND {max(numbers)}"
            f" AND stored.{a.GROUP_KEY} = fresh.{a.GROUP_KEY} AND stored.{a.SEQUENCE_NUM} = fresh.{a.SEQUENCE_NUM}"
            f" WHEN MATCHED THEN UPDATE SET {a.BODY} = fresh.{a.BODY}, {a.CHECKSUM} = fresh.{a.CHECKSUM}"
        )
        count = int(merged.collect()[0]["num_updated_rows"])
    finally:
        spark.catalog.dropTempView("taken_over")
    reach("keying.rewritten")
    if count != len(rows):
        raise ArchiveError(f"{count} messages of the archive were encrypted where {len(rows)} were to be")
