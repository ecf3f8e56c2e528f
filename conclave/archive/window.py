"""What one query of the archive looks at, and what is kept of its answer: the first messages, as far as they fit."""

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from conclave.archive.layout import DamagedError, require_sound
from conclave.archive.scan import batches, most_between, numbers, select
from conclave.archive.snapshot import Place, Snapshot
from conclave.retention.stretches import Part, Stretch
from conclave.store.resources.messages import MessageRow

if TYPE_CHECKING:
    from deltalake import QueryBuilder


@dataclass(frozen=True)
class Found:
    """The first messages of a stretch."""

    messages: list[MessageRow]
    full: bool
    """The page has no room for more; otherwise these are all."""
    were_passed_over: bool = False
    """Whether some were only found by looking at rows: what a file says of them is damaged."""


@dataclass(frozen=True)
class Window:
    """What one query looks at: the numbers greater than ``after`` and at most ``last``."""

    stretch: Stretch
    parts: Sequence[Part]
    after: int
    last: int
    limit: int
    """How many messages are wanted at most."""

    def read(self, table: Snapshot, room: int, least: int) -> Found:
        """Return the first messages, up to ``room`` bytes of bodies, but at least ``least`` messages.

        Where a number is missing, its message was erased or is hidden, or a damaged file has it passed over, and who
        reads on would never get it: then what is there is told by pages that have their checksums. Raises
        DamagedError, or what ``Snapshot`` raises.
        """
        found = self._read(table.quick, room, least)
        is_cut = found.full or len(found.messages) == self.limit
        end = max((each.sequence_num for each in found.messages), default=self.after) if is_cut else self.last
        place = self.place(end)
        if len(found.messages) == most_between(self.parts, self.after, end) - len(place.left_out):
            return found
        if len(found.messages) == table.count(place):
            return found
        query, seen = table.by_rows(), numbers(self.stretch, self.parts, self.after, end)
        if sum(batch.num_rows for batch in batches(query, seen)) == len(found.messages):
            return found
        return replace(self._read(query, room, least), were_passed_over=True)

    def place(self, last: int) -> Place:
        """Return where the messages with numbers up to ``last`` are. What was taken back does not count if left out."""
        stretch = self.stretch
        partitions = frozenset((part.lifetime, part.span) for part in self.parts)
        taken_back = () if stretch.include_redacted else stretch.taken_back
        among = (number for number in taken_back if self.after < number <= last)
        left_out = (each for each in among if any(part.first_seq <= each <= part.last_seq for part in self.parts))
        return Place(partitions, stretch.group_key, self.after, last, tuple(left_out))

    def _read(self, query: "QueryBuilder", room: int, least: int) -> Found:
        if sum(part.body_bytes for part in self.parts) <= room:
            sql = select(self.stretch, self.parts, self.after, self.last, self.limit)
            return self._sound([row for batch in batches(query, sql) for row in _rows(batch)], full=False)
        # DataFusion would hold ``limit`` messages, of any size, before it handed out the first.
        first = First(self.limit, room, least)
        for batch in batches(query, select(self.stretch, self.parts, self.after, self.last)):
            first.add(batch)
        return self._sound(first.rows, full=first.full)

    def _sound(self, rows: list["_Row"], *, full: bool) -> Found:
        """Return the messages of ``rows``. Raises DamagedError if one of them is not as it was archived."""
        key = self.stretch.group_key
        for each, is_commit, stored in rows:
            number, sender_id, body, created_at = each[:4]
            try:
                require_sound(key, number, sender_id, created_at, body, stored, is_commit=is_commit)
            except (TypeError, struct.error) as error:  # a column whose name was altered has no values
                raise DamagedError(number) from error
        return Found([self._as_seen(row.message) for row in rows], full)

    def _as_seen(self, message: MessageRow) -> MessageRow:
        """Return a message as readers see it: of one that was taken back, only that it is there."""
        if message.sequence_num not in self.stretch.taken_back:
            return message
        return message._replace(mls_message=b"", redact_at=0)


class _Row(NamedTuple):
    """A message as the table has it, with what it is checked by."""

    message: MessageRow
    is_commit: bool
    checksum: int


class First:
    """Keeps the first messages of those that come in any order, and no more than there is room for."""

    def __init__(self, limit: int, room: int, least: int) -> None:
        self._limit = limit
        self._room = room
        self._least = least
        self._end = math.inf
        self.rows: list[_Row] = []

    @property
    def full(self) -> bool:
        """Whether some messages had no room."""
        return self._end < math.inf

    def add(self, batch: Any) -> None:
        """Take what is wanted of a batch of rows."""
        if min(batch.column(0).to_pylist(), default=self._end) >= self._end:
            return
        self.rows += (row for row in _rows(batch) if row.message.sequence_num < self._end)
        self.rows.sort(key=lambda row: row.message.sequence_num)
        left = self._room
        for count, (message, _, _) in enumerate(self.rows):
            left -= len(message.mls_message)
            if count == self._limit or (left < 0 and count >= self._least):
                # Messages after this one have no room either, even if earlier ones are still to come.
                self._end = message.sequence_num
                del self.rows[count:]
                return


def _rows(batch: Any) -> Iterator[_Row]:
    """Make messages of a batch of rows with the columns COLUMNS of query.py, and those after them."""
    *columns, commits, checksums = _values(batch)
    return map(_Row, map(MessageRow, *columns), commits, checksums)


def _values(batch: Any) -> list[list[Any]]:
    return [column.to_pylist() for column in batch.columns]
