"""Moves a group's messages back from the archive into the hot store. Clients do not notice.

Requires the run lock. The messages stay in the table until its space is reclaimed, and the group does not move again
before that. An interrupted restore does not affect readers. It can be repeated; otherwise the next run deletes its
copies.
"""

import sqlite3
from collections.abc import Iterator, Sequence

from pyspark.sql import DataFrame, SparkSession, functions as F

from conclave.archive.layout import in_partitions
from conclave.config.archive import ArchiveConfig
from conclave.failpoints import reach
from conclave.retention.policy import KEEP
from conclave.store.archive import moves, restore as archive_restore
from conclave.store.archive.moves import PartRow
from conclave.store.archive.restore import ArchivedMessage
from conclave.store.engine.faults import free_bytes
from conclave.store.resources import audit, groups
from conclave.store.resources.groups import GroupRow
from conclave.system import operator_identity
from spark.archive import columns as a
from spark.archive.check import Check, examine
from spark.archive.living import Living
from spark.archive.reclaim import readable_rows
from spark.archive.table import Table
from spark.hot_store import ArchiveRunError, Hot

WINDOW_ROWS = 20_000
"""The most messages to read from the table at once."""

WINDOW_BYTES = 32 * 1024 * 1024
"""The approximate maximum bytes of bodies to read from the table at once."""

CHUNK_ROWS = 256
"""The most messages to store in a transaction."""

CHUNK_BYTES = 256 * 1024
"""The most bytes of bodies to store in a transaction, but at least one message."""

_COLUMNS = (a.SEQUENCE_NUM, a.SENDER_ID, a.IS_COMMIT, a.CREATED_AT, a.BODY)


def restore(
    spark: SparkSession,
    hot: Hot,
    table: Table,
    config: ArchiveConfig,
    living: Living,
    group_id: bytes,
    spare: int,
    *,
    is_forced: bool = False,
) -> int:
    """Restore a group; return the number of restored messages. Raises ArchiveRunError or RestoreError.

    ``living``: finds the readable messages; others stay in the archive. ``spare``: the bytes to leave free on the disk
    for runs. ``is_forced``: restore even damaged messages, and those that the next run would move again.
    """
    group = hot.read(groups.find, group_id)
    if group is None:
        raise ArchiveRunError("no such group")
    parts = hot.read(moves.parts, group.group_key)
    if not parts or not group.archived_seq:
        raise ArchiveRunError("nothing of the group is served from the archive")
    if hot.read(moves.batch_under_way) is not None:
        raise ArchiveRunError("a move is under way: do a cleanup run first, which finishes it")
    if not is_forced and config.after != KEEP and group.policy.outlives(config.least_lifetime):
        raise ArchiveRunError('the next run would move the messages again: set [archive] after = "-1" first')
    _require_room(hot, sum(part.body_bytes for part in parts), spare)
    rows = table.read().where(in_partitions([(part.lifetime, part.span) for part in parts]))
    check = Check() if is_forced else examine(spark, hot, rows, living, group.group_key)
    if check.differences:
        raise ArchiveRunError(f"{check.differences[0]}; nothing was restored")
    count, messages = 0, readable_rows(spark, rows, parts, living)
    for part in sorted(parts, key=lambda part: part.first_seq):
        for chunk in _chunks(messages, part):
            count += len(chunk)
            _require_room(hot, sum(len(message.mls_message) for message in chunk), spare)
            hot.write(archive_restore.store_copies, group.group_key, chunk)
            reach("restore.copied")
    reach("restore.before_switch")
    hot.write(_switch_back, group, count, hot.now)
    reach("restore.switched")
    return count


def _require_room(hot: Hot, size: int, spare: int) -> None:
    """Raise ArchiveRunError unless the disk has space for ``size`` bytes of bodies, and ``spare`` bytes more."""
    free = free_bytes(hot.path.parent)
    if free < size + spare:
        raise ArchiveRunError(
            f"{hot.path}: there is no room for what is in the archive: {free:,} bytes are free, {size + spare:,} are"
            " needed, with those that are kept for cleanup; nothing was restored"
        )


def _switch_back(connection: sqlite3.Connection, group: GroupRow, count: int, now: int) -> None:
    archive_restore.switch_back(connection, group.group_key, count)
    subject = audit.Subject(group.group_id, group.group_name)
    audit.note(
        connection, now, operator_identity.current(), audit.AuditAction.GROUP_RESTORED, subject, {"messages": count}
    )


def windows(numbers: Sequence[int], body_bytes: int) -> Iterator[tuple[int, int]]:
    """Divide messages, by ascending numbers, into windows to read at once; yield their first and last numbers.

    ``body_bytes``: the bytes of all bodies. After a backup was restored, numbers may have gaps of billions.
    """
    count = max(1, -(-len(numbers) // WINDOW_ROWS), -(-body_bytes // WINDOW_BYTES))
    width = max(1, -(-len(numbers) // count))
    for start in range(0, len(numbers), width):
        window = numbers[start : start + width]
        yield window[0], window[-1]


def _chunks(rows: DataFrame, part: PartRow) -> Iterator[Sequence[ArchivedMessage]]:
    """Yield the messages of one part in ascending order, in chunks of one transaction each."""
    part_rows = rows.where(in_partitions([(part.lifetime, part.span)])).where(F.col(a.GROUP_KEY) == part.group_key)
    numbers = sorted(part_rows.select(a.SEQUENCE_NUM).toArrow()[a.SEQUENCE_NUM].to_pylist())
    for first, last in windows(numbers, part.body_bytes):
        window = part_rows.where(F.col(a.SEQUENCE_NUM).between(first, last)).select(*_COLUMNS)
        chunk: list[ArchivedMessage] = []
        size = 0
        for number, sender_id, is_commit, created_at, body in sorted(window.collect()):
            if chunk and (len(chunk) == CHUNK_ROWS or size + len(body) > CHUNK_BYTES):
                yield chunk
                chunk, size = [], 0
            chunk.append(ArchivedMessage(number, bytes(sender_id), is_commit, created_at, bytes(body)))
            size += len(body)
        if chunk:
            yield chunk
