"""Moves older messages from the hot store into the archive, and survives a crash at every step.

A batch is fixed in the hot store, appended to the table under its number, read back from the disk and compared. Then
each group switches to the archive in one transaction. Only then the copies in the hot store are deleted. The next run
continues with batches that did not get that far, and deletes copies that are left after a crash. A message is always in
at least one of the two places, and is served from one only: a group's ``archived_seq`` says from which.

Up to four batches are under way at the same time, in different steps: one is read, one is appended, one is compared and
switched, and the copies of one are deleted. None of this needs Spark.

Copies are messages in the hot store that the archive serves. Readers ignore these rows, so a crash after any step does
no harm: the next run continues.
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
    """Yield the steps that delete the copies in ``ranges``. Their keys stay: the archive has the messages."""
    for each in ranges:
        yield partial(_delete_some, connection, each)


def _delete_some(connection: sqlite3.Connection, within: MoveRange) -> bool:
    rows = connection.execute(_COPIES, (within.group_key, within.first_seq, within.last_seq, CHUNK)).fetchall()
    if not rows:
        return False
    values = within.group_key, rows[0][0], rows[-1][0]
    connection.execute("DELETE FROM messages WHERE group_key = ? AND sequence_num BETWEEN ? AND ?", values)
    bodies.delete_of_messages(connection, [bodies.message_id(within.group_key, row[0]) for row in rows])
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

_SEEN = pyarrow.schema([each for each in a.ARCHIVE if each.name != a.BODY])
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
        """``archive_id``: identifies the store's batches in the table's log. ``living``: the messages with keys now."""
        self._living = living
        self._hot = hot
        self._table = table
        self._archive_id = archive_id

    def finish(self) -> int:
        """Finish active batches; return how many messages they have. The copies stay."""
        count = 0
        while (number := self._hot.read(moves.batch_under_way)) is not None:
            is_there = self._table.has_batch(self._archive_id, number)
            batch = _Appended(number, self._version_of(number), None) if is_there else self._append(self._load(number))
            count += self._settle(batch, self._ranges(number))
        return count

    def move(self, archive: ArchiveConfig) -> Iterator[int]:
        """Move all messages older than ``archive.after`` seconds; yield for each batch how many messages it had."""
        with _threads_take_turns(), ThreadPoolExecutor(3) as beside:
            loaded = _ahead(beside, self._batches(archive))
            deleted: Future[None] | None = None
            for batch in _ahead(beside, map(self._append, loaded)):
                ranges = self._ranges(batch.number)
                yield self._settle(batch, ranges)
                if deleted:
                    deleted.result()
                deleted = beside.submit(self._delete, ranges)
            if deleted:
                deleted.result()

    def _batches(self, archive: ArchiveConfig) -> Iterator[_Loaded]:
        """Choose, fix and read batches until no message is old enough."""
        before = self._hot.now - archive.after
        for bound in self._hot.read(self._plan, archive, before):
            more = True
            while more:
                ranges, more = self._hot.read(self._choose, archive, bound)
                if not ranges:
                    break
                number = self._hot.write(moves.fix_batch, ranges, self._hot.now)
                reach("archive.fixed")
                yield self._load(number)

    def drop_copies(self) -> None:
        """Delete the copies that an interrupted run or restore left in the hot store."""
        self._delete(self._hot.read(moves.hot_copies))

    def count(self, archive: ArchiveConfig) -> int:
        """Return how many messages would move."""
        return self._hot.read(self._count, archive)

    def _plan(self, connection: sqlite3.Connection, archive: ArchiveConfig, before: int) -> list[int]:
        self._list_movable(connection, archive, before)
        return move_selection.time_slices(connection, before, BATCH_ROWS)

    def _count(self, connection: sqlite3.Connection, archive: ArchiveConfig) -> int:
        before = self._hot.now - archive.after
        self._list_movable(connection, archive, before)
        return move_selection.count(connection, before)

    def _choose(
        self, connection: sqlite3.Connection, archive: ArchiveConfig, before: int
    ) -> tuple[list[MoveRange], bool]:
        self._list_movable(connection, archive, before)
        return move_selection.choose(connection, before, BATCH_ROWS, BATCH_BYTES)

    def _list_movable(self, connection: sqlite3.Connection, archive: ArchiveConfig, before: int) -> None:
        move_selection.list_movable(connection, archive.least_lifetime, before)

    def _ranges(self, number: int) -> list[MoveRange]:
        return self._hot.read(moves.ranges_of, number)

    def _load(self, number: int) -> _Loaded:
        return _Loaded(number, _arranged(_read(self._hot.path, number)))

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
        living, dead = self._verify(batch, self._table.read_added(batch.version))
        parts, senders = _summarize(living)
        count, checksum = _totals(parts)
        self._hot.write(moves.note_verified, batch.number, count, checksum)
        reach("archive.verified")
        self._switch(ranges, parts, senders, batch.version)
        self._hot.write(_finish, batch.number, self._hot.now, dead)
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

        Returns the messages to add to the index, and erased ones. After a crash, the table may have messages that were
        erased from the hot store meanwhile, so only those in the hot store must be in the table. Others with keys were
        erased after the batch was verified; they are added, and erased from the archive next.
        """
        copied = pyarrow.concat_tables([_SEEN.empty_table(), *(_seen(*each) for each in added)])
        if batch.expected == _totals(_summarize(copied)[0]):
            return copied, _SEEN.empty_table()
        there, stored = set(a.values_of(copied, _IDENTITY)), list(a.values_of(self._load(batch.number).rows, _IDENTITY))
        missing = sum(each not in there for each in stored)
        times = copied.group_by(_IDENTITY[:2]).aggregate([([], "count_all")])
        doubled = compute.sum(compute.greater(times["count_all"], 1)).as_py() or 0
        if missing or doubled:
            raise ArchiveRunError(
                f"move {batch.number}: {missing} messages are not in the archive as they were, {doubled} are there"
                " twice; nothing was deleted"
            )
        living, found = self._living(), defaultdict[int, list[tree.Range]](list)
        for part in _summarize(copied)[0]:
            found[part.group_key] += living.of(part)
        kept = {group_key: key_ranges.union(some) for group_key, some in found.items()}
        lives = pyarrow.array(
            [holds(kept[key], number) for key, number in a.values_of(copied, _IDENTITY[:2])], pyarrow.bool_()
        )
        return copied.filter(lives), copied.filter(compute.invert(lives))

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


def _ahead(beside: Executor, items: Iterator[T]) -> Iterator[T]:
    """Yield ``items``, computing the next one in another thread meanwhile."""
    following = beside.submit(next, items, None)
    while (item := following.result()) is not None:
        following = beside.submit(next, items, None)
        yield item


@contextmanager
def _threads_take_turns() -> Iterator[None]:
    """Context manager that makes Python switch threads ten times as often: a thread may hold the database lock."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 10)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _read(database: Path, batch: int) -> pyarrow.Table:
    """Return the stored messages of a batch that are not archived yet, with bodies. Raises ArchiveRunError."""
    command = parent_bound_command(
        sys.executable, "-P", "-m", "spark.archive.batch_reader", database.as_uri(), str(batch)
    )
    found, count = [a.MOVING.empty_table()], None
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
                found.append(rows.cast(a.MOVING))
    whole = pyarrow.concat_tables(found)
    if reader.returncode or whole.num_rows != count:
        raise ArchiveRunError(f"move {batch}: could not be read from the database; the log says why")
    return whole


def _arranged(rows: pyarrow.Table) -> pyarrow.Table:
    """Add the span to the rows, and sort them as the archive's files are sorted."""
    created = rows[a.CREATED_AT]
    lifetimes = compute.unique(rows[a.LIFETIME])
    widths = pyarrow.array([span_width(lifetime) for lifetime in lifetimes.to_pylist()], pyarrow.int64())
    width = widths.take(compute.index_in(rows[a.LIFETIME].combine_chunks(), lifetimes))
    span = compute.multiply(compute.divide(created, width), width)
    order = [(name, "ascending") for name in (a.LIFETIME, a.SPAN, a.GROUP_KEY, a.SEQUENCE_NUM)]
    return rows.append_column(a.SPAN, span).sort_by(order)


def _seen(partition: Partition, rows: pyarrow.Table) -> pyarrow.Table:
    """Return messages that were read back without bodies, with recomputed checksums."""
    columns = {name: rows[name] for name in rows.column_names} | {
        a.LIFETIME: pyarrow.repeat(partition[0], rows.num_rows),
        a.SPAN: pyarrow.repeat(partition[1], rows.num_rows),
        a.CHECKSUM: a.checksums_of(rows),
    }
    return pyarrow.table([columns[name] for name in _SEEN.names], _SEEN)


def _summarize(copied: pyarrow.Table) -> tuple[list[PartRow], dict[int, set[bytes]]]:
    """Return the parts of messages, and the senders of messages other than commits by group key."""
    sums: dict[tuple[int, ...], int] = defaultdict(int)
    for *part, checksum in a.values_of(copied, [*_PART, a.CHECKSUM]):
        sums[tuple(part)] ^= checksum
    bounds = [(name, which) for name in (a.SEQUENCE_NUM, a.CREATED_AT) for which in ("min", "max")]
    totals = copied.group_by(_PART).aggregate([*bounds, ([], "count_all"), (a.SIZE, "sum")])
    names = [*_PART, *map("_".join, bounds), "count_all", f"{a.SIZE}_sum"]
    sent = copied.filter(compute.invert(copied[a.IS_COMMIT])).group_by([a.GROUP_KEY, a.SENDER_ID]).aggregate([])
    senders: dict[int, set[bytes]] = defaultdict(set)
    for group_key, sender_id in a.values_of(sent, [a.GROUP_KEY, a.SENDER_ID]):
        senders[group_key].add(sender_id)
    return [PartRow(*(*row, sums[row[: len(_PART)]])) for row in a.values_of(totals, names)], senders


def _totals(parts: list[PartRow]) -> tuple[int, int | None]:
    """Return count and checksum of all messages together; no checksum if there are no parts."""
    xor = 0
    for part in parts:
        xor ^= part.checksum
    return sum(part.message_count for part in parts), xor if parts else None


def _finish(connection: sqlite3.Connection, batch: int, now: int, dead: pyarrow.Table) -> None:
    """Finish a batch. ``dead``: messages of the batch that were erased before."""
    moves.finish(connection, batch, now)
    for partition, count in Counter(a.values_of(dead, [a.LIFETIME, a.SPAN])).items():
        reclaiming.note(connection, partition, count, now)
    numbers: dict[int, list[int]] = defaultdict(list)
    for group_key, number in a.values_of(dead, _IDENTITY[:2]):
        numbers[group_key].append(number)
    for group_key, some in numbers.items():
        of_group = set(a.values_of(dead.filter(compute.equal(dead[a.GROUP_KEY], group_key)), [a.LIFETIME, a.SPAN]))
        taken_back.forget_erased(connection, group_key, some, sorted(of_group))


def _switch(
    connection: sqlite3.Connection, moved: MoveRange, parts: list[PartRow], senders: set[bytes], version: int
) -> bool:
    moves.switch(connection, moved, parts, senders, version)
    reach("archive.group_switched")
    return False
