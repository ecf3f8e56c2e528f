"""What SQLite leaves in unused bytes, made to lie where it is partly written over."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from conclave.proof import pages, remains


class Table:
    """A segment's table in a database of its own, and what is judged a remain in it."""

    def __init__(self, path: Path, connection: sqlite3.Connection, segment: int) -> None:
        self.path, self.connection, self.segment = path, connection, segment
        self.name = f"body_segment_{segment}"
        self.rows = 0
        connection.execute(f"CREATE TABLE {self.name} (body_id INTEGER PRIMARY KEY, body BLOB) STRICT")

    def put(self, size: int) -> int:
        self.rows += 1
        body_id = self.segment << 32 | self.rows
        self.connection.execute(f"INSERT INTO {self.name} VALUES (?, ?)", (body_id, b"\xa7" * size))
        return body_id

    def erase(self, body_id: int) -> None:
        self.connection.execute(f"UPDATE {self.name} SET body = NULL WHERE body_id = ?", (body_id,))

    def remains(self) -> list[tuple[str, bool, int]]:
        """Return what is judged a remain: where, whether in a leaf, and at which offset."""
        return [
            (each.kind, is_leaf, at)
            for data, layout, is_leaf, unused in self._pages()
            for each in unused
            if (
                at := remains.in_leaf(data, each, layout)
                if is_leaf
                else remains.in_interior(data, each, layout, self.segment)
            )
            >= 0
        ]

    def unallocated(self) -> list[bytes]:
        """Return what is not zero in the unallocated part of each leaf."""
        parts = [
            data[each.begin : each.end].strip(b"\0")
            for data, _, is_leaf, unused in self._pages()
            for each in unused
            if is_leaf and each.kind == "unallocated part"
        ]
        return [each for each in parts if each]

    def _pages(self) -> Iterator[tuple[bytes, pages.Layout, bool, list[pages.ByteRange]]]:
        file = self.path.read_bytes()
        layout = pages.read_layout(file)
        (root,) = self.connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (self.name,)).fetchone()
        waiting = [root]
        while waiting:
            data = file[layout.begin_of(waiting.pop()) :][: layout.page_bytes]
            if pages.is_leaf(data):
                yield data, layout, True, pages.read_leaf(data, layout).unused
            else:
                inner = pages.read_interior(data, layout)
                waiting += [inner.last_child, *(child for child, _ in inner.children)]
                yield data, layout, False, inner.unused


@contextmanager
def opened(path: Path, page_bytes: int) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(
            f"PRAGMA page_size = {page_bytes}; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA secure_delete = ON;"
            "PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY"
        )
        yield connection


@pytest.mark.parametrize("segment", [1, 8, 5000])
def test_entries_that_are_written_over_from_both_sides_are_no_remains(tmp_path: Path, segment: int) -> None:
    """An inner page that was split fills up again: the places of its entries grow upwards, the entries downwards."""
    with opened(tmp_path / "hot.db", 1024) as connection:
        table = Table(tmp_path / "hot.db", connection, segment)
        for _ in range(240):
            table.put(700)  # each has a leaf
            assert table.remains() == []


@pytest.mark.parametrize("free", [9, 240])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_numbers_of_free_pages_in_a_leaf_are_no_remains(tmp_path: Path, rows: int, free: int) -> None:
    """The root is full when the list of free pages has but its own page: that takes the rows, and is not zeroed."""
    with opened(tmp_path / "hot.db", 4096) as connection:
        connection.execute("CREATE TABLE other (body BLOB)")
        table = Table(tmp_path / "hot.db", connection, 2)
        connection.execute("INSERT INTO other VALUES (zeroblob(?))", (470 + 4092 * free,))
        for _ in range(rows):
            table.put(24)
        connection.execute("DELETE FROM other")
        connection.execute("INSERT INTO other VALUES (zeroblob(?))", (470 + 4092 * (free - 1),))
        assert connection.execute("PRAGMA freelist_count").fetchone() == (1,)
        table.put(4050)
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)
        assert max(map(len, table.unallocated())) >= 4 * (free - 1) - 2 * rows - 4, "the numbers are there"
        assert table.remains() == []
        table.put(300)
        assert table.remains() == []


@pytest.mark.parametrize("left", [1, 2, 3])
@pytest.mark.parametrize("is_before_another", [False, True])
def test_a_head_whose_end_a_row_was_written_over_is_no_remain(
    tmp_path: Path, left: int, is_before_another: bool
) -> None:
    with opened(tmp_path / "hot.db", 4096) as connection:
        table = Table(tmp_path / "hot.db", connection, 1)
        if is_before_another:
            table.erase(table.put(100))
        table.put(100)
        body_id = table.put(700)
        table.erase(body_id)
        table.put(700 - left - (0 if is_before_another else 9))  # 9 bytes: the row without a body
        assert table.remains() == []
        table.put(20)
        table.put(300)
        assert table.remains() == []


@pytest.mark.parametrize("left", range(8))
def test_a_head_whose_beginning_the_list_of_rows_has_grown_over_is_no_remain(tmp_path: Path, left: int) -> None:
    with opened(tmp_path / "hot.db", 4096) as connection:
        table = Table(tmp_path / "hot.db", connection, 1)
        for _ in range(12):
            table.put(24)
        begin, end = 8 + 2 * 13, 4096 - 12 * 33
        table.erase(table.put(end - begin - left - 11))  # 11 bytes: what a row has beside its body
        for _ in range(6):
            table.put(24)
            assert table.remains() == []
