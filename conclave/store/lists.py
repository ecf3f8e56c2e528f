"""Reads lists a part at a time: any number of rows in bounded memory, and no long snapshot.

A part begins after the last row of the part before, by the key that orders the list. So what is added or removed
between two parts moves no other row: a row that stays is read exactly once.
"""

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

ROW_BYTES = 192
"""A row counts as 192 bytes more than its texts and bytes: about what JSON needs for names, ids and numbers."""

MOST_ROWS = 1_000
"""At most 1,000 rows are read for one part."""

T = TypeVar("T")

Key = int | str


class NotListedError(Exception):
    """The row after which a part is to begin is not on the list."""


@dataclass(frozen=True)
class Span:
    """Which part of a list to read: what follows ``after``, up to ``rows`` rows or about ``size`` bytes."""

    after: bytes | Key | None = None
    """The id of a row, as a client names it; or a row's key, as ``ListPart.last`` has it; None: from the beginning."""
    rows: int | None = None
    """At most so many, and at most MOST_ROWS; None: as many as there are."""
    size: int = 256 * 1024
    """As ``weight`` counts. One row is read however large it is."""

    @property
    def most_rows(self) -> int:
        """How many rows a part may have."""
        return MOST_ROWS if self.rows is None else min(self.rows, MOST_ROWS)


@dataclass(frozen=True)
class ListPart(Generic[T]):
    """A part of a list."""

    items: list[T]
    last: Key | None
    """The key of the last row that was read: the next part begins after it."""
    is_end: bool
    """Whether the list has nothing more."""
    size: int = 0
    """The bytes of the items, as ``weight`` counts."""
    long: Any = None
    """A single item that is too large for a part, and is read in parts itself. ``items`` is empty then."""


@dataclass(frozen=True)
class Listing(Generic[T]):
    """What to read for a list, and in which order."""

    columns: str
    tables: str
    condition: str
    """SQL with named parameters."""
    key: str
    """The column that orders the list. An index begins with what ``condition`` fixes, and goes on with this."""
    id: str
    """The column by which a client names a row."""
    make: Callable[..., T]
    """Makes an item of a row's columns, by their names."""
    descending: bool = False

    def read(
        self,
        connection: sqlite3.Connection,
        span: Span,
        values: Mapping[str, Any],
        shown: Callable[[T], Any] = lambda item: item,
    ) -> ListPart[Any]:
        """Read a part. ``values``: the parameters of the condition.

        ``shown``: called with each item, returns what is listed in its place; None leaves it out.

        Raises NotListedError if the row that a client names is not on the list.
        """
        after = self._key_of(connection, span.after, values) if isinstance(span.after, bytes) else span.after
        beyond = "" if after is None else f" AND {self.key} {'<' if self.descending else '>'} :after"
        items: list[Any] = []
        size, last = 0, after
        rows = connection.execute(
            f"SELECT {self.key} AS list_key, {self.columns} FROM {self.tables} WHERE {self.condition}{beyond}"
            f" ORDER BY {self.key}{' DESC' if self.descending else ''}",
            {**values, "after": after},
        )
        with closing(rows):  # or the statement, and its snapshot, would stay open
            for row in rows:
                if size and (len(items) >= span.most_rows or size >= span.size):
                    return ListPart(items, last, is_end=False, size=size)
                found = dict(row)
                last, size = found.pop("list_key"), size + weight(row)
                item = shown(self.make(**found))
                if item is not None:
                    items.append(item)
        return ListPart(items, last, is_end=True, size=size)

    def _key_of(self, connection: sqlite3.Connection, row_id: bytes, values: Mapping[str, Any]) -> Key:
        row = connection.execute(
            f"SELECT {self.key} FROM {self.tables} WHERE {self.condition} AND {self.id} = :row_id",
            {**values, "row_id": row_id},
        ).fetchone()
        if row is None:
            raise NotListedError
        key: Key = row[0]
        return key


def weight(row: sqlite3.Row) -> int:
    """Return about how many bytes a row takes in an answer."""
    return ROW_BYTES + sum(len(value) for value in row if isinstance(value, (str, bytes)))
