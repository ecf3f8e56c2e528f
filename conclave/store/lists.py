"""Reads lists in parts (keyset pagination): bounded memory, and no long read transactions.

A part begins after the last key of the previous part. So rows that are added or removed between two parts do not shift
others: a row that stays is read exactly once.
"""

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

ROW_BYTES = 192
"""The estimated overhead of a row is 192 bytes: about what JSON needs for names, ids and numbers."""

MAX_ROWS = 1_000
"""A part has at most 1,000 rows."""

T = TypeVar("T")

Key = int | str


class NotListedError(Exception):
    """The row after which a part should begin is not in the list."""


@dataclass(frozen=True)
class Span:
    """A part of a list to read: the rows after ``after``, up to ``rows`` rows or about ``size`` bytes."""

    after: bytes | Key | None = None
    """A row's id, as sent by a client, or a row's key, from ``ListPart.last``; None: from the beginning."""
    rows: int | None = None
    """The maximum number of rows, at most MAX_ROWS; None: MAX_ROWS."""
    size: int = 256 * 1024
    """In bytes, see ``estimated_size``. At least one row is read, whatever its size."""

    @property
    def most_rows(self) -> int:
        """The maximum number of rows."""
        return MAX_ROWS if self.rows is None else min(self.rows, MAX_ROWS)


@dataclass(frozen=True)
class ListPart(Generic[T]):
    """A part of a list."""

    items: list[T]
    last: Key | None
    """The key of the last row that was read: the next part begins after it."""
    is_end: bool
    """Whether this is the last part."""
    size: int = 0
    """The bytes of the items, see ``estimated_size``."""
    long: Any = None
    """A single item that is too large for a part, and is read in parts itself. Then ``items`` is empty."""


@dataclass(frozen=True)
class Listing(Generic[T]):
    """The query of a list."""

    columns: str
    tables: str
    condition: str
    """SQL with named parameters."""
    key: str
    """The sort column. There must be an index on the columns that ``condition`` fixes, followed by this one."""
    id: str
    """The column with the id by which clients refer to a row."""
    make: Callable[..., T]
    """Creates an item from a row's columns, as keyword arguments."""
    descending: bool = False

    def read(
        self,
        connection: sqlite3.Connection,
        span: Span,
        values: Mapping[str, Any],
        shown: Callable[[T], Any] = lambda item: item,
    ) -> ListPart[Any]:
        """Read a part. ``values``: the parameters of the condition.

        ``shown``: converts each item; None omits it.

        Raises NotListedError if ``span.after`` is an id that is not in the list.
        """
        after = self._key_of(connection, span.after, values) if isinstance(span.after, bytes) else span.after
        after_condition = "" if after is None else f" AND {self.key} {'<' if self.descending else '>'} :after"
        items: list[Any] = []
        size, last = 0, after
        rows = connection.execute(
            f"SELECT {self.key} AS list_key, {self.columns} FROM {self.tables} WHERE {self.condition}{after_condition}"
            f" ORDER BY {self.key}{' DESC' if self.descending else ''}",
            {**values, "after": after},
        )
        with closing(rows):  # otherwise the statement, and its snapshot, would stay open
            for row in rows:
                if size and (len(items) >= span.most_rows or size >= span.size):
                    return ListPart(items, last, is_end=False, size=size)
                values_by_name = dict(row)
                last, size = values_by_name.pop("list_key"), size + estimated_size(row)
                item = shown(self.make(**values_by_name))
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


def estimated_size(row: sqlite3.Row) -> int:
    """Return the estimated size of a row in a response, in bytes."""
    return ROW_BYTES + sum(len(value) for value in row if isinstance(value, (str, bytes)))
