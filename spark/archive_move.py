"""Moves older messages from the hot store into the archive, and survives a crash at every step.

A batch is fixed in the hot store, appended to the table under its number, read back and compared, then each group
switches to it in one transaction, and only then the copies in the hot store are deleted. The next run goes on with a
batch that did not end. No message is ever in neither place, and none is served from both: a group's ``archived_seq``
says which of the two serves it.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from functools import partial

import adbc_driver_sqlite.dbapi
import pyarrow
import pyarrow.compute
from pyspark.sql import DataFrame, Observation, SparkSession, functions as F

from conclave.archive_layout import span_width
from conclave.config import ArchiveConfig
from conclave.failpoints import reach
from conclave.policy import AFTER_FETCH, KEEP, PolicySettings
from conclave.store import archive_choice, archive_moves, bodies
from conclave.store.archive_moves import PartRow, Range
from spark import archive_columns as a
from spark.apply import Step
from spark.archive_table import Table, checksum
from spark.hot import ArchiveError, Hot

BATCH_ROWS = 400_000
BATCH_BYTES = 128 * 1024 * 1024
"""What one batch holds at most; the driver has all of it in memory, several times over."""

CHUNK, CHUNK_BYTES = 256, 256 * 1024
"""How much of the copies is deleted between two looks at the clock: so many rows, and bytes of bodies."""

STRETCH = 20_000
"""So many copies lie in few enough pages to be deleted by group: their indexes are in that order."""

APPEND_TASKS, TASK_BYTES = 4, 16 * 1024 * 1024
"""A batch is written by one task for so many bytes, but no more than so many: each makes a file for each part."""

_PICK = """
CREATE TEMP TABLE picked AS SELECT message_id, lifetime, group_key, sequence_num, sender_id, is_commit, created_at
FROM archive_move_ranges CROSS JOIN messages USING (group_key)
WHERE batch = ? AND sequence_num BETWEEN first_seq AND last_seq ORDER BY message_id
"""


def movable_lifetimes(settings: PolicySettings, occurring: Collection[int], archive: ArchiveConfig) -> dict[int, int]:
    """Return the effective expiry by group setting, for those of ``occurring`` whose groups use the archive."""
    effective = {setting: settings.effective(setting) for setting in occurring}
    least = archive.after + archive.margin
    return {
        setting: lifetime
        for setting, lifetime in effective.items()
        if lifetime == KEEP or (lifetime != AFTER_FETCH and lifetime > least)
    }


class Mover:
    """Moves batches of one store into its archive."""

    def __init__(self, spark: SparkSession, hot: Hot, table: Table, archive_id: str) -> None:
        """``archive_id`` names the store's moves in the table's log."""
        self._spark = spark
        self._hot = hot
        self._table = table
        self._archive_id = archive_id

    def finish(self) -> int:
        """Go on with the batch that is under way, if there is one; return how many messages it has."""
        batch = self._hot.read(archive_moves.batch_under_way)
        return self._move(batch) if batch is not None else 0

    def move(self, archive: ArchiveConfig) -> Iterator[int]:
        """Move all messages older than ``archive.after``, batch by batch; yield how many each had."""
        before = self._hot.now - archive.after
        for bound in self._hot.read(self._plan, archive, before):
            while ranges := self._hot.read(self._choose, archive, bound):
                self._hot.write(archive_moves.fix, ranges, self._hot.now)
                reach("archive.fixed")
                yield self.finish()

    def drop_copies(self) -> None:
        """Delete from the hot store what the archive serves, with no move under way: a restore that did not end."""
        if ranges := self._hot.read(archive_moves.copies):
            self._hot.write_steps(lambda connection: _delete_copies(connection, ranges))

    def has_work(self, connection: sqlite3.Connection, archive: ArchiveConfig) -> bool:
        """Tell whether any message is old enough to move."""
        self._list_movable(connection, archive, self._hot.now - archive.after)
        return connection.execute("SELECT 1 FROM temp.movable LIMIT 1").fetchone() is not None

    def count(self, archive: ArchiveConfig) -> int:
        """Return about how many messages would move."""
        return self._hot.read(self._count, archive)

    def _plan(self, connection: sqlite3.Connection, archive: ArchiveConfig, before: int) -> list[int]:
        self._list_movable(connection, archive, before)
        return archive_choice.time_slices(connection, before, BATCH_ROWS)

    def _count(self, connection: sqlite3.Connection, archive: ArchiveConfig) -> int:
        before = self._hot.now - archive.after
        self._list_movable(connection, archive, before)
        return archive_choice.count(connection, before)

    def _choose(self, connection: sqlite3.Connection, archive: ArchiveConfig, before: int) -> list[Range]:
        self._list_movable(connection, archive, before)
        return archive_choice.choose(connection, before, BATCH_ROWS, BATCH_BYTES)

    def _list_movable(self, connection: sqlite3.Connection, archive: ArchiveConfig, before: int) -> None:
        occurring = [row[0] for row in connection.execute("SELECT DISTINCT message_expiry_seconds FROM groups")]
        lifetimes = movable_lifetimes(self._hot.settings, occurring, archive)
        archive_choice.list_movable(connection, lifetimes, before)

    def _move(self, batch: int) -> int:
        ranges = self._hot.read(archive_moves.ranges_of, batch)
        source = self._source(batch)
        before = self._table.version()
        expected = None
        if not self._table.has_batch(self._archive_id, batch):
            expected = _write(self._table, source, self._archive_id, batch)
            reach("archive.appended")
        parts, senders = self._verify(source, self._table.read_batch(self._archive_id, batch), batch, expected)
        count, xor = _totals(parts)
        self._table.make_durable(min(before, self._table.version() - 1))
        self._hot.write(archive_moves.note_verified, batch, count, xor)
        reach("archive.verified")
        self._switch(ranges, parts, senders)
        self._hot.write_steps(lambda connection: _delete_copies(connection, ranges))
        reach("archive.copies_deleted")
        self._hot.write(archive_moves.finish, batch, self._hot.now)
        reach("archive.finished")
        return count

    def _source(self, batch: int) -> DataFrame:
        """Return what the hot store has of a batch, as the archive's table has it and in the order of its files."""
        table = _arranged(read_batch(self._hot, batch))
        tasks = max(1, min(APPEND_TASKS, table.nbytes // TASK_BYTES))
        rows = self._spark.createDataFrame(table).coalesce(tasks)
        return rows.withColumn(a.CHECKSUM, checksum()).select(*a.ARCHIVE.names)

    def _verify(
        self, source: DataFrame, copied: DataFrame, batch: int, expected: tuple[int, int | None] | None
    ) -> tuple[list[PartRow], dict[int, set[bytes]]]:
        """Compare the copies with the originals; return what the batch adds to the index, and the senders by group.

        ``expected``: count and checksum of what has just been appended; None after a crash. What a rule has deleted
        from the hot store since then may be in the archive still, and goes from there in this run: so each original
        that is left has to have its copy. Raises ArchiveError.
        """
        parts, senders = _summarize(copied)
        if expected == _totals(parts):
            return parts, senders
        keys = [a.GROUP_KEY, a.SEQUENCE_NUM, "computed"]
        originals = source.select(a.GROUP_KEY, a.SEQUENCE_NUM, F.col(a.CHECKSUM).alias("computed"))
        missing = originals.join(copied.withColumn("computed", checksum()), keys, "left_anti").count()
        doubled = copied.groupBy(a.GROUP_KEY, a.SEQUENCE_NUM).count().where("count > 1").count()
        if missing or doubled:
            raise ArchiveError(
                f"move {batch}: {missing} messages are not in the archive as they were, {doubled} are there twice;"
                " nothing was deleted"
            )
        return parts, senders

    def _switch(self, ranges: list[Range], parts: list[PartRow], senders: dict[int, set[bytes]]) -> None:
        parts_of: dict[int, list[PartRow]] = defaultdict(list)
        for part in parts:
            parts_of[part.group_key].append(part)
        version = self._table.version()

        def steps(connection: sqlite3.Connection) -> Iterator[Step]:
            for each in ranges:
                key = each.group_key
                yield partial(_switch, connection, each, parts_of[key], senders.get(key, set()), version)

        self._hot.write_steps(steps)


def read_batch(hot: Hot, batch: int) -> pyarrow.Table:
    """Read the messages of a batch with their bodies; no ``sqlite3`` connection may be open meanwhile."""
    with (
        closing(adbc_driver_sqlite.dbapi.connect(f"{hot.path.as_uri()}?mode=ro")) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("PRAGMA temp_store = MEMORY")
        cursor.execute(_PICK.replace("?", f"{batch:d}"))
        # After a crash some of the bodies may be erased already, and their segments gone.
        cursor.execute("SELECT segment FROM body_segments WHERE segment IN (SELECT message_id >> 32 FROM temp.picked)")
        segments = [row[0] for row in cursor.fetchall()]
        found = [a.MOVING.empty_table()]
        for segment in segments:
            cursor.execute(
                "SELECT lifetime, group_key, sequence_num, sender_id, is_commit, created_at, body AS mls_message"
                f" FROM temp.picked CROSS JOIN body_segment_{segment:d} ON body_id = message_id"
                f" WHERE message_id >> 32 = {segment:d} AND body IS NOT NULL"
            )
            rows = cursor.fetch_arrow_table()
            if rows.num_rows:
                found.append(rows.cast(a.MOVING))
        return pyarrow.concat_tables(found)


def _arranged(rows: pyarrow.Table) -> pyarrow.Table:
    """Add the span, and bring the rows into the order of the archive's files."""
    created = rows[a.CREATED_AT]
    lifetimes = pyarrow.compute.unique(rows[a.LIFETIME])
    widths = pyarrow.array([span_width(lifetime) for lifetime in lifetimes.to_pylist()], pyarrow.int64())
    width = widths.take(pyarrow.compute.index_in(rows[a.LIFETIME].combine_chunks(), lifetimes))
    span = pyarrow.compute.multiply(pyarrow.compute.divide(created, width), width)
    order = [(name, "ascending") for name in (a.LIFETIME, a.SPAN, a.GROUP_KEY, a.SEQUENCE_NUM)]
    return rows.append_column(a.SPAN, span).sort_by(order)


def _summarize(rows: DataFrame) -> tuple[list[PartRow], dict[int, set[bytes]]]:
    """Return what ``rows`` have in each part of each group, checksums computed anew; and who sent what is no commit."""
    number, created = F.col(a.SEQUENCE_NUM), F.col(a.CREATED_AT)
    found = (
        rows.groupBy(a.GROUP_KEY, a.LIFETIME, a.SPAN)
        .agg(
            F.min(number),
            F.max(number),
            F.min(created),
            F.max(created),
            F.count(number),
            F.sum(F.octet_length(a.BODY)),
            F.bit_xor(checksum()),
            F.collect_set(F.when(~F.col(a.IS_COMMIT), F.col(a.SENDER_ID))),
        )
        .collect()
    )
    senders: dict[int, set[bytes]] = defaultdict(set)
    for row in found:
        senders[row[0]].update(map(bytes, row[10]))
    return [PartRow(*tuple(row)[:10]) for row in found], senders


def _totals(parts: list[PartRow]) -> tuple[int, int | None]:
    """Return count and checksum of all together; no checksum for none."""
    xor = 0
    for part in parts:
        xor ^= part.checksum
    return sum(part.message_count for part in parts), xor if parts else None


def _write(table: Table, source: DataFrame, archive_id: str, batch: int) -> tuple[int, int | None]:
    """Append, and return count and checksum of what was read for it.

    The rows of each task are in order already, but Spark would sort by part alone.
    """
    order = [a.LIFETIME, a.SPAN, a.GROUP_KEY, a.SEQUENCE_NUM]
    seen = Observation()
    observed = source.observe(seen, F.count(F.lit(1)).alias("count"), F.bit_xor(a.CHECKSUM).alias("checksum"))
    table.append(observed.sortWithinPartitions(*order), archive_id, batch)
    return seen.get["count"], seen.get["checksum"]


def _switch(
    connection: sqlite3.Connection, moved: Range, parts: list[PartRow], senders: set[bytes], version: int
) -> bool:
    archive_moves.switch(connection, moved, parts, senders, version)
    reach("archive.group_switched")
    return False


def _delete_copies(connection: sqlite3.Connection, ranges: list[Range]) -> Iterator[Step]:
    """Erase the bodies in the order in which they lie; then delete the rows, stretch by stretch, by group.

    These orders touch a fraction of the pages that deleting message by message would. Nobody follows a row to its
    body any more, and erasing a body again does nothing.
    """
    copies = [row["message_id"] for each in ranges for row in connection.execute(_COPIES, _copies_of(each))]
    rank = {message_id: position for position, message_id in enumerate(copies)}
    copies.sort()
    yield _Shortening(partial(_erase_some, connection), copies).step
    for at in range(0, len(copies), STRETCH):
        stretch = sorted(copies[at : at + STRETCH], key=rank.__getitem__)
        yield _Shortening(partial(_delete_rows, connection), stretch).step


_COPIES = """
SELECT message_id FROM messages WHERE group_key = ?1 AND sequence_num BETWEEN ?2
AND min(?3, ifnull((SELECT archived_seq FROM groups WHERE group_key = ?1), ?3)) ORDER BY sequence_num
"""
"""The messages of a move that the archive serves now; none of a group that has not switched."""


def _copies_of(moved: Range) -> tuple[int, int, int]:
    return moved.group_key, moved.first_seq, moved.last_seq


class _Shortening:
    """Works a list off from its beginning, CHUNK at most a step; ``work`` returns how many it has done."""

    def __init__(self, work: Callable[[list[int]], int], rest: list[int]) -> None:
        self._work = work
        self._rest = rest
        self._done = 0

    def step(self) -> bool:
        self._done += self._work(self._rest[self._done : self._done + CHUNK])
        return self._done < len(self._rest)


def _erase_some(connection: sqlite3.Connection, message_ids: list[int]) -> int:
    chosen = bodies.first_within(connection, message_ids, CHUNK_BYTES)
    bodies.erase(connection, chosen)
    reach("archive.copies_erased")
    return len(chosen)


def _delete_rows(connection: sqlite3.Connection, message_ids: list[int]) -> int:
    connection.executemany("DELETE FROM messages WHERE message_id = ?", [(each,) for each in message_ids])
    reach("archive.copies_chunk_deleted")
    return len(message_ids)
