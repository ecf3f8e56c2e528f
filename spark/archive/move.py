"""Moves older messages from the hot store into the archive, and survives a crash at every step.

A batch is fixed in the hot store, appended to the table under its number, read back from the disk and compared. Then
each group switches to the archive in one transaction. Only then are the copies in the hot store deleted. The next run
continues with unfinished batches, and deletes copies that are left after a crash. A message is always in
at least one of the two places, and is served from one only: a group's ``archived_seq`` says from which.

Up to four batches are under way at the same time, in different steps: one is read, one is appended, one is compared and
switched, and the copies of one are deleted. None of this needs Spark.

A copy is a message in the hot store that the archive serves. Readers ignore copies, so a crash after any step does no
harm: the next run continues.
"""

import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow
from pyarrow import compute

from conclave.archive.layout import span_width
from conclave.config.archive import ArchiveConfig
from conclave.failpoints import reach
from conclave.keys import tree, tree as key_ranges
from conclave.store import bodies
from conclave.store.archive import move_selection, moves, reclaiming
from conclave.store.archive.moves import MoveRange, PartRow
from conclave.store.engine.sqlite import Step
from conclave.store.resources import taken_back
from conclave.system.child_process import parent_bound_command
from spark.archive import batch_reader, columns as a
from spark.archive.data_files import Partition
from spark.archive.living import Living, holds
from spark.archive.table import Table
from spark.hot_store import ArchiveRunError, Hot

CHUNK = 256
"""The most messages to delete in one step."""

_COPIES = """
SELECT sequence_num FROM messages WHERE group_key = ?1 AND sequence_num BETWEEN ?2
AND min(?3, ifnull((SELECT archived_seq FROM groups WHERE group_key = ?1), ?3)) ORDER BY sequence_num LIMIT ?4
"""
"""The messages of a range that the archive serves, if the group has switched to it."""


def delete(connection: sqlite3.Connection, ranges: Collection[MoveRange]) -> Iterator[Step]:
    """Yield the steps that delete the copies in ``ranges``, but not their keys: the archive has the messages."""
    for each in ranges:
        yield partial(_delete_chunk, connection, each)


def _delete_chunk(connection: sqlite3.Connection, copies: MoveRange) -> bool:
    rows = connection.execute(_COPIES, (copies.group_key, copies.first_seq, copies.last_seq, CHUNK)).fetchall()
    if not rows:
        return False
    values = copies.group_key, rows[0][0], rows[-1][0]
    connection.execute("DELETE FROM messages WHERE group_key = ? AND sequence_num BETWEEN ? AND ?", values)
    bodies.delete_of_messages(connection, [bodies.message_id(copies.group_key, row[0]) for row in rows])
    reach("archive.copies_chunk_deleted")
    return len(rows) == CHUNK


BATCH_ROWS = 300_000
"""The most messages of a batch."""

BATCH_BYTES = 96 * 1024 * 1024
"""The most bytes of bodies in a batch, but at least one message: several batches are in memory."""

_PART = [a.GROUP_KEY, a.LIFETIME, a.SPAN]
"""The key columns of an index row."""

_IDENTITY = [a.GROUP_KEY, a.SEQUENCE_NUM, a.CHECKSUM]
"""The columns that identify a message and its content."""

_READ_BACK = pyarrow.schema([each for each in a.ARCHIVE if each.name != a.BODY])
"""The columns to keep of messages that were read back: all except the bodies, with recomputed checksums."""

T = TypeVar("T")


@dataclass(frozen=True)
class _Loaded:
    """A batch from the hot store, in the row order of the archive's files."""

    number: int
    rows: pyarrow.Table


@dataclass(frozen=True)
class _Appended:
    """A batch in the table, and the version of the table that added it.

    ``expected``: count and checksum of the messages that were appended; None if a run before a crash appended them.
    """

    number: int
    version: int
    expected: tuple[int, int | None] | None


class Mover:
    """Moves batches of one store into its archive."""

    def __init__(self, hot: Hot, table: Table, archive_id: str, living: Callable[[], Living]) -> None:
        """``archive_id``: identifies the store's batches in the table's log. ``living``: finds readable messages."""
        self._living = living
        self._hot = hot
        self._table = table
        self._archive_id = archive_id

    def finish(self) -> int:
        """Finish active batches; return how many messages they have. Does not delete the copies."""
        count = 0
        while (number := self._hot.read(moves.batch_under_way)) is not None:
            in_table = self._table.last_batch(self._archive_id) >= number
            batch = _Appended(number, self._version_of(number), None) if in_table else self._append(self._load(number))
            count += self._settle(batch, self._ranges(number))
        return count

    def move(self, archive: ArchiveConfig) -> Iterator[int]:
        """Move all messages older than ``archive.after`` seconds; yield for each batch how many messages it had."""
        with _frequent_thread_switches(), ThreadPoolExecutor(3) as executor:
            loaded = _computed_ahead(executor, self._batches(archive))
            deletion: Future[None] | None = None
            for batch in _computed_ahead(executor, map(self._append, loaded)):
                ranges = self._ranges(batch.number)
                yield self._settle(batch, ranges)
                if deletion:
                    deletion.result()
                deletion = executor.submit(self._delete, ranges)
            if deletion:
                deletion.result()

    def _batches(self, archive: ArchiveConfig) -> Iterator[_Loaded]:
        """Choose, fix and read batches until no message is old enough."""
        least, before = archive.least_lifetime, self._hot.now - archive.after
        for bound in self._hot.read(move_selection.time_slices, least, before, BATCH_ROWS):
            has_more = True
            while has_more:
                ranges, has_more = self._hot.read(move_selection.choose, least, bound, BATCH_ROWS, BATCH_BYTES)
                if not ranges:
                    break
                number = self._hot.write(moves.fix_batch, ranges, self._hot.now)
                reach("archive.fixed")
                yield self._load(number)

    def drop_copies(self) -> None:
        """Delete the copies that an interrupted run or restore left in the hot store."""
        self._delete(self._hot.read(moves.hot_copies))

    def _ranges(self, number: int) -> list[MoveRange]:
        return self._hot.read(moves.ranges_of, number)

    def _load(self, number: int) -> _Loaded:
        return _Loaded(number, _in_file_order(_read(self._hot.path, number)))

    def _append(self, batch: _Loaded) -> _Appended:
        total = 0
        for (checksum,) in a.values_of(batch.rows, [a.CHECKSUM]):
            total ^= checksum
        self._table.append(batch.rows, self._archive_id, batch.number)
        reach("archive.appended")
        version = self._version_of(batch.number)
        self._table.make_durable(version)
        return _Appended(batch.number, version, (batch.rows.num_rows, total if batch.rows.num_rows else None))

    def _version_of(self, number: int) -> int:
        return self._table.version_of_batch(self._archive_id, number)

    def _settle(self, batch: _Appended, ranges: Collection[MoveRange]) -> int:
        """Check that a batch is complete in the table, and serve it from there; return how many messages it has."""
        readable, erased = self._verify(batch, self._table.read_added(batch.version))
        parts, senders = _summarize(readable)
        count, checksum = _totals(parts)
        self._hot.write(moves.note_verified, batch.number, count, checksum)
        reach("archive.verified")
        self._switch(ranges, parts, senders, batch.version)
        self._hot.write(_finish, batch.number, self._hot.now, erased)
        reach("archive.finished")
        return count

    def _delete(self, copies: Collection[MoveRange]) -> None:
        if copies:
            self._hot.write_steps(lambda connection: delete(connection, copies))
            reach("archive.copies_deleted")

    def _verify(
        self, batch: _Appended, added: Iterator[tuple[Partition, pyarrow.Table]]
    ) -> tuple[pyarrow.Table, pyarrow.Table]:
        """Compare the messages of a batch in the table, ``added``, with the hot store. Raises ArchiveRunError.

        Returns the messages to add to the index, and the erased messages. After a crash, the table may have messages
        that have since been erased from the hot store. So the table must have all messages of the batch that are in
        the hot store, but may have others. Those with keys are added to the index, and then erased from the archive.
        """
        copied = pyarrow.concat_tables([_READ_BACK.empty_table(), *(_read_back(*each) for each in added)])
        if batch.expected == _totals(_summarize(copied)[0]):
            return copied, _READ_BACK.empty_table()
        in_table = set(a.values_of(copied, _IDENTITY))
        stored = list(a.values_of(self._load(batch.number).rows, _IDENTITY))
        missing = sum(each not in in_table for each in stored)
        counts = copied.group_by(_IDENTITY[:2]).aggregate([([], "count_all")])
        duplicates = compute.sum(compute.greater(counts["count_all"], 1)).as_py() or 0
        if missing or duplicates:
            raise ArchiveRunError(
                f"move {batch.number}: {missing} messages are not in the archive as they were, {duplicates} are there"
                " twice; nothing was deleted"
            )
        living, ranges_by_group = self._living(), defaultdict[int, list[tree.Range]](list)
        for part in _summarize(copied)[0]:
            ranges_by_group[part.group_key] += living.of(part)
        readable = {group_key: key_ranges.union(ranges) for group_key, ranges in ranges_by_group.items()}
        is_readable = pyarrow.array(
            [holds(readable[key], number) for key, number in a.values_of(copied, _IDENTITY[:2])], pyarrow.bool_()
        )
        return copied.filter(is_readable), copied.filter(compute.invert(is_readable))

    def _switch(
        self, ranges: Collection[MoveRange], parts: list[PartRow], senders: dict[int, set[bytes]], version: int
    ) -> None:
        parts_of: dict[int, list[PartRow]] = defaultdict(list)
        for part in parts:
            parts_of[part.group_key].append(part)

        def steps(connection: sqlite3.Connection) -> Iterator[Step]:
            for each in ranges:
                key = each.group_key
                yield partial(_switch, connection, each, parts_of[key], senders.get(key, set()), version)

        self._hot.write_steps(steps)


def _computed_ahead(executor: Executor, items: Iterator[T]) -> Iterator[T]:
    """Yield ``items``. While the caller uses an item, another thread computes the next one."""
    next_item = executor.submit(next, items, None)
    while (item := next_item.result()) is not None:
        next_item = executor.submit(next, items, None)
        yield item


@contextmanager
def _frequent_thread_switches() -> Iterator[None]:
    """Context manager that makes Python switch threads ten times as often: a thread may hold the database lock."""
    default_interval = sys.getswitchinterval()
    sys.setswitchinterval(default_interval / 10)
    try:
        yield
    finally:
        sys.setswitchinterval(default_interval)


def _read(database: Path, batch: int) -> pyarrow.Table:
    """Return the messages of a batch that the archive does not serve yet, with bodies. Raises ArchiveRunError."""
    command = parent_bound_command(
        sys.executable, "-P", "-m", "spark.archive.batch_reader", database.as_uri(), str(batch)
    )
    tables, count = [a.MOVING.empty_table()], None
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as reader,  # noqa: S603 - a module of this program
        suppress(pyarrow.ArrowException),
    ):
        while count is None:
            with pyarrow.ipc.open_stream(reader.stdout) as stream:
                rows = stream.read_all()
            if rows.column_names == [batch_reader.COUNT]:
                count = rows[batch_reader.COUNT][0].as_py()
            else:
                tables.append(rows.cast(a.MOVING))
    batch_rows = pyarrow.concat_tables(tables)
    if reader.returncode or batch_rows.num_rows != count:
        raise ArchiveRunError(f"move {batch}: could not be read from the database; the log says why")
    return batch_rows


def _in_file_order(rows: pyarrow.Table) -> pyarrow.Table:
    """Add the span to the rows, and sort them in the order of the archive's files."""
    created = rows[a.CREATED_AT]
    lifetimes = compute.unique(rows[a.LIFETIME])
    widths = pyarrow.array([span_width(lifetime) for lifetime in lifetimes.to_pylist()], pyarrow.int64())
    width = widths.take(compute.index_in(rows[a.LIFETIME].combine_chunks(), lifetimes))
    span = compute.multiply(compute.divide(created, width), width)
    order = [(name, "ascending") for name in (a.LIFETIME, a.SPAN, a.GROUP_KEY, a.SEQUENCE_NUM)]
    return rows.append_column(a.SPAN, span).sort_by(order)


def _read_back(partition: Partition, rows: pyarrow.Table) -> pyarrow.Table:
    """Return messages that were read back without bodies, with recomputed checksums."""
    columns = {name: rows[name] for name in rows.column_names} | {
        a.LIFETIME: pyarrow.repeat(partition[0], rows.num_rows),
        a.SPAN: pyarrow.repeat(partition[1], rows.num_rows),
        a.CHECKSUM: a.checksums_of(rows),
    }
    return pyarrow.table([columns[name] for name in _READ_BACK.names], _READ_BACK)


def _summarize(copied: pyarrow.Table) -> tuple[list[PartRow], dict[int, set[bytes]]]:
    """Return the parts of messages, and the senders of messages other than commits by group key."""
    sums: dict[tuple[int, ...], int] = defaultdict(int)
    for *part, checksum in a.values_of(copied, [*_PART, a.CHECKSUM]):
        sums[tuple(part)] ^= checksum
    bounds = [(name, which) for name in (a.SEQUENCE_NUM, a.CREATED_AT) for which in ("min", "max")]
    totals = copied.group_by(_PART).aggregate([*bounds, ([], "count_all"), (a.SIZE, "sum")])
    names = [*_PART, *map("_".join, bounds), "count_all", f"{a.SIZE}_sum"]
    sender_rows = copied.filter(compute.invert(copied[a.IS_COMMIT])).group_by([a.GROUP_KEY, a.SENDER_ID]).aggregate([])
    senders: dict[int, set[bytes]] = defaultdict(set)
    for group_key, sender_id in a.values_of(sender_rows, [a.GROUP_KEY, a.SENDER_ID]):
        senders[group_key].add(sender_id)
    return [PartRow(*(*row, sums[row[: len(_PART)]])) for row in a.values_of(totals, names)], senders


def _totals(parts: list[PartRow]) -> tuple[int, int | None]:
    """Return the count and the checksum of all messages; the checksum is None if there are no parts."""
    checksum = 0
    for part in parts:
        checksum ^= part.checksum
    return sum(part.message_count for part in parts), checksum if parts else None


def _finish(connection: sqlite3.Connection, batch: int, now: int, erased: pyarrow.Table) -> None:
    """Finish a batch. ``erased``: messages of the batch that were erased before."""
    moves.finish(connection, batch, now)
    for partition, count in Counter(a.values_of(erased, [a.LIFETIME, a.SPAN])).items():
        reclaiming.note(connection, partition, count, now)
    numbers: dict[int, list[int]] = defaultdict(list)
    for group_key, number in a.values_of(erased, _IDENTITY[:2]):
        numbers[group_key].append(number)
    for group_key, group_numbers in numbers.items():
        rows = erased.filter(compute.equal(erased[a.GROUP_KEY], group_key))
        partitions = set(a.values_of(rows, [a.LIFETIME, a.SPAN]))
        taken_back.forget_erased(connection, group_key, group_numbers, sorted(partitions))


def _switch(
    connection: sqlite3.Connection, moved: MoveRange, parts: list[PartRow], senders: set[bytes], version: int
) -> bool:
    moves.switch(connection, moved, parts, senders, version)
    reach("archive.group_switched")
    return False
