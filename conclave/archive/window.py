"""Reads a range of archived messages by one query, and keeps the first messages that fit on the page."""

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from conclave.archive.layout import DamagedMessageError, verify_checksum
from conclave.archive.scan import batches, max_between, numbers, select
from conclave.archive.snapshot import MessageRange, Snapshot
from conclave.retention.stretches import Part, Stretch
from conclave.store.resources.messages import MessageRow

if TYPE_CHECKING:
    from deltalake import QueryBuilder


@dataclass(frozen=True)
class WindowResult:
    """The first messages of a stretch."""

    messages: list[MessageRow]
    full: bool
    """Whether the page has no room for more; otherwise these are all."""
    has_skipped_rows: bool = False
    """Whether damaged statistics of a file would have skipped some of them."""


@dataclass(frozen=True)
class Window:
    """The range of one query: numbers greater than ``after`` and at most ``last``."""

    stretch: Stretch
    parts: Sequence[Part]
    after: int
    last: int
    limit: int
    """The maximum number of messages to return."""

    def read(self, table: Snapshot, room: int, least: int) -> WindowResult:
        """Return the first messages, up to ``room`` bytes of bodies, but at least ``least`` messages.

        If a number is missing, its message was erased or is hidden, or damaged statistics have skipped it, and the
        reader would never get it. In that case the messages are counted in pages with verified checksums.
        Raises DamagedMessageError, or the errors of ``Snapshot``.
        """
        result = self._read(table.quick, room, least)
        is_cut = result.full or len(result.messages) == self.limit
        end = max((each.sequence_num for each in result.messages), default=self.after) if is_cut else self.last
        message_range = self.range_to(end)
        if len(result.messages) == max_between(self.parts, self.after, end) - len(message_range.excluded):
            return result
        if len(result.messages) == table.count(message_range):
            return result
        query, sql = table.by_rows(), numbers(self.stretch, self.parts, self.after, end)
        if sum(batch.num_rows for batch in batches(query, sql)) == len(result.messages):
            return result
        return replace(self._read(query, room, least), has_skipped_rows=True)

    def range_to(self, last: int) -> MessageRange:
        """Return the range up to ``last``, without the taken back messages that the query excludes."""
        stretch = self.stretch
        partitions = frozenset((part.lifetime, part.span) for part in self.parts)
        taken_back = () if stretch.include_redacted else stretch.taken_back
        numbers_in_range = (number for number in taken_back if self.after < number <= last)
        excluded = (
            each for each in numbers_in_range if any(part.first_seq <= each <= part.last_seq for part in self.parts)
        )
        return MessageRange(partitions, stretch.group_key, self.after, last, tuple(excluded))

    def _read(self, query: "QueryBuilder", room: int, least: int) -> WindowResult:
        if sum(part.body_bytes for part in self.parts) <= room:
            sql = select(self.stretch, self.parts, self.after, self.last, self.limit)
            return self._verified([row for batch in batches(query, sql) for row in _rows(batch)], full=False)
        # With a limit, DataFusion would buffer ``limit`` messages of any size.
        first = FirstRows(self.limit, room, least)
        for batch in batches(query, select(self.stretch, self.parts, self.after, self.last)):
            first.add(batch)
        return self._verified(first.rows, full=first.full)

    def _verified(self, rows: list["_Row"], *, full: bool) -> WindowResult:
        """Return the messages of ``rows``. Raises DamagedMessageError if a checksum is wrong."""
        key = self.stretch.group_key
        for each, is_commit, stored in rows:
            number, sender_id, body, created_at = each[:4]
            try:
                verify_checksum(key, number, sender_id, created_at, body, stored, is_commit=is_commit)
            except (TypeError, struct.error) as error:  # a column with a damaged name has no values
                raise DamagedMessageError(number) from error
        return WindowResult([self._redacted(row.message) for row in rows], full)

    def _redacted(self, message: MessageRow) -> MessageRow:
        """Return the message, redacted if it was taken back."""
        if message.sequence_num not in self.stretch.taken_back:
            return message
        return message._replace(mls_message=b"", redact_at=0)


class _Row(NamedTuple):
    """A message of the table, with the values to verify its checksum."""

    message: MessageRow
    is_commit: bool
    checksum: int


class FirstRows:
    """Collects rows in any order, and keeps the first messages that fit."""

    def __init__(self, limit: int, room: int, least: int) -> None:
        self._limit = limit
        self._room = room
        self._least = least
        self._end = math.inf
        self.rows: list[_Row] = []

    @property
    def full(self) -> bool:
        """Whether some messages did not fit."""
        return self._end < math.inf

    def add(self, batch: Any) -> None:
        """Add a batch of rows, and drop the messages that do not fit."""
        if min(batch.column(0).to_pylist(), default=self._end) >= self._end:
            return
        self.rows += (row for row in _rows(batch) if row.message.sequence_num < self._end)
        self.rows.sort(key=lambda row: row.message.sequence_num)
        remaining = self._room
        for count, (message, _, _) in enumerate(self.rows):
            remaining -= len(message.mls_message)
            if count == self._limit or (remaining < 0 and count >= self._least):
                # Later messages do not fit either.
                self._end = message.sequence_num
                del self.rows[count:]
                return


def _rows(batch: Any) -> Iterator[_Row]:
    """Convert a batch with the columns of ``scan.select``."""
    *columns, commits, checksums = _values(batch)
    return map(_Row, map(MessageRow, *columns), commits, checksums)


def _values(batch: Any) -> list[list[Any]]:
    return [column.to_pylist() for column in batch.columns]
