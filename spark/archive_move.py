"""Moves older messages from the hot store into the archive, and survives a crash at every step.

A batch is fixed in the hot store, appended to the table under its number, read back and compared, then each group
switches to it in one transaction, and only then the copies in the hot store are deleted. The next run goes on with a
batch that did not end. No message is ever in neither place, and none is served from both: a group's ``archived_seq``
says which of the two serves it.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import closing
from functools import partial

import adbc_driver_sqlite.dbapi
import pyarrow
from pyspark.sql import Column, DataFrame, SparkSession, functions as F

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

BATCH_ROWS = 200_000
BATCH_BYTES = 128 * 1024 * 1024
"""What one batch holds at most; the driver has all of it in memory, several times over."""

CHUNK, CHUNK_BYTES = 64, 256 * 1024
"""How many copies are deleted between two looks at the clock."""

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
        if not self._table.has_batch(self._archive_id, batch):
            _write(self._table, source, self._archive_id, batch)
            reach("archive.appended")
        copied = self._table.read_batch(self._archive_id, batch)
        parts = self._verify(source, copied, batch)
        self._table.make_durable(min(before, self._table.version() - 1))
        self._hot.write(archive_moves.note_verified, batch, sum(part.message_count for part in parts), _xor(parts))
        reach("archive.verified")
        senders = copied.where(~F.col(a.IS_COMMIT)).select(a.GROUP_KEY, a.SENDER_ID).distinct().collect()
        self._switch(ranges, parts, [(row[0], bytes(row[1])) for row in senders])
        self._hot.write_steps(lambda connection: _delete_copies(connection, ranges))
        reach("archive.copies_deleted")
        self._hot.write(archive_moves.finish, batch, self._hot.now)
        reach("archive.finished")
        return sum(part.message_count for part in parts)

    def _source(self, batch: int) -> DataFrame:
        """Return what the hot store has of a batch, as the archive's table has it."""
        table = read_batch(self._hot, batch)
        widths = {lifetime: span_width(lifetime) for lifetime in table[a.LIFETIME].unique().to_pylist()}
        rows = self._spark.createDataFrame(table)
        span = F.col(a.CREATED_AT) - F.col(a.CREATED_AT) % _width(widths)
        return rows.withColumns({a.SPAN: span, a.CHECKSUM: checksum()}).select(*a.ARCHIVE.names)

    def _verify(self, source: DataFrame, copied: DataFrame, batch: int) -> list[PartRow]:
        """Compare the copies with the originals; return what the batch adds to the index. Raises ArchiveError.

        What a rule has deleted from the hot store since a crash may be in the archive still, and goes from there in
        this run: then each original that is left has to have its copy.
        """
        found = part_rows(copied)
        if part_rows(source, stored=a.CHECKSUM) == found:
            return found
        keys = [a.GROUP_KEY, a.SEQUENCE_NUM, "computed"]
        originals = source.select(a.GROUP_KEY, a.SEQUENCE_NUM, F.col(a.CHECKSUM).alias("computed"))
        missing = originals.join(copied.withColumn("computed", checksum()), keys, "left_anti").count()
        doubled = copied.groupBy(a.GROUP_KEY, a.SEQUENCE_NUM).count().where("count > 1").count()
        if missing or doubled:
            raise ArchiveError(
                f"move {batch}: {missing} messages are not in the archive as they were, {doubled} are there twice;"
                " nothing was deleted"
            )
        return found

    def _switch(self, ranges: list[Range], parts: list[PartRow], senders: list[tuple[int, bytes]]) -> None:
        parts_of: dict[int, list[PartRow]] = defaultdict(list)
        for part in parts:
            parts_of[part.group_key].append(part)
        senders_of: dict[int, list[bytes]] = defaultdict(list)
        for group_key, sender_id in senders:
            senders_of[group_key].append(sender_id)
        version = self._table.version()

        def steps(connection: sqlite3.Connection) -> Iterator[Step]:
            for each in ranges:
                key = each.group_key
                yield partial(_switch, connection, each, parts_of[key], senders_of[key], version)

        self._hot.write_steps(steps)


def read_batch(hot: Hot, batch: int) -> pyarrow.Table:
    """Read the messages of a batch with their bodies; no ``sqlite3`` connection may be open meanwhile."""
    with (
        closing(adbc_driver_sqlite.dbapi.connect(f"{hot.path.as_uri()}?mode=ro")) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("PRAGMA temp_store = MEMORY")
        cursor.execute(_PICK.replace("?", f"{batch:d}"))
        cursor.execute("SELECT DISTINCT message_id >> 32 FROM temp.picked")
        segments = [row[0] for row in cursor.fetchall()]
        found = [a.MOVING.empty_table()]
        for segment in segments:
            cursor.execute(
                "SELECT lifetime, group_key, sequence_num, sender_id, is_commit, created_at, body AS mls_message"
                f" FROM temp.picked CROSS JOIN body_segment_{segment:d} ON body_id = message_id"
                f" WHERE message_id >> 32 = {segment:d}"
            )
            found.append(cursor.fetch_arrow_table().cast(a.MOVING))
        return pyarrow.concat_tables(found)


def part_rows(rows: DataFrame, *, stored: str = "") -> list[PartRow]:
    """Return what ``rows`` have in each part of each group, in order; checksums computed anew, or as ``stored``."""
    number, created = F.col(a.SEQUENCE_NUM), F.col(a.CREATED_AT)
    found = rows.groupBy(a.GROUP_KEY, a.LIFETIME, a.SPAN).agg(
        F.min(number),
        F.max(number),
        F.min(created),
        F.max(created),
        F.count(number),
        F.sum(F.octet_length(a.BODY)),
        F.bit_xor(F.col(stored) if stored else checksum()),
    )
    return sorted(
        (PartRow(*row) for row in found.collect()), key=lambda part: (part.group_key, part.lifetime, part.span)
    )


def _write(table: Table, source: DataFrame, archive_id: str, batch: int) -> None:
    """Append, so that each file has one part's messages in the order in which a group is read."""
    order = [a.LIFETIME, a.SPAN, a.GROUP_KEY, a.SEQUENCE_NUM]
    table.append(source.repartitionByRange(*order[:3]).sortWithinPartitions(*order), archive_id, batch)


def _switch(
    connection: sqlite3.Connection, moved: Range, parts: list[PartRow], senders: list[bytes], version: int
) -> bool:
    archive_moves.switch(connection, moved, parts, senders, version)
    reach("archive.group_switched")
    return False


def _delete_copies(connection: sqlite3.Connection, ranges: list[Range]) -> Iterator[Step]:
    for each in ranges:
        yield partial(_delete_some, connection, each)


def _delete_some(connection: sqlite3.Connection, moved: Range) -> bool:
    """Delete some of the messages that the archive serves now; none of a group that has not switched."""
    rows = connection.execute(
        "SELECT message_id FROM messages WHERE group_key = ?1 AND sequence_num BETWEEN ?2 AND"
        " min(?3, ifnull((SELECT archived_seq FROM groups WHERE group_key = ?1), ?3)) ORDER BY sequence_num LIMIT ?4",
        (moved.group_key, moved.first_seq, moved.last_seq, CHUNK),
    )
    found = [row["message_id"] for row in rows]
    chosen = bodies.first_within(connection, found, CHUNK_BYTES)
    connection.executemany("DELETE FROM messages WHERE message_id = ?", [(message_id,) for message_id in chosen])
    bodies.erase(connection, chosen)
    reach("archive.copies_chunk_deleted")
    return len(chosen) < len(found) or len(found) == CHUNK


def _width(widths: dict[int, int]) -> Column:
    pairs = [F.lit(value) for pair in widths.items() for value in pair]
    return F.create_map(*pairs)[F.col(a.LIFETIME)].cast("long") if pairs else F.lit(1)


def _xor(parts: list[PartRow]) -> int:
    result = 0
    for part in parts:
        result ^= part.checksum
    return result
