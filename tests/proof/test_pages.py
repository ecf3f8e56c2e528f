"""Pages as SQLite writes them, and as nobody should: read by the format, and never further."""

import contextlib
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from conclave.proof import pages, remains
from conclave.proof.pages import ByteRange, Layout, MalformedError
from conclave.store import bodies
from conclave.store.engine import sqlite
from tests.support import stores

LAYOUT = Layout(4096, 4096, 1000, 0, 0, has_pointer_map=True)
SMALL = Layout(512, 480, 300_000, 3, 1, has_pointer_map=True)
SEGMENT = 7


def header(size: int = 4096, **changed: int) -> bytes:
    fields = {"reserved": 0, "pages": 10, "trunk": 0, "free": 0, "largest_root": 5} | changed
    data = bytearray(100)
    data[:16] = pages.MAGIC
    struct.pack_into(">H", data, 16, size)
    data[20] = fields["reserved"]
    struct.pack_into(">III", data, 28, fields["pages"], fields["trunk"], fields["free"])
    struct.pack_into(">I", data, 52, fields["largest_root"])
    return bytes(data)


def number(value: int) -> bytes:
    """A number of variable length, of less than 2 ** 56."""
    parts = [value & 0x7F]
    while value := value >> 7:
        parts.append(value & 0x7F | 0x80)
    return bytes(reversed(parts))


def row(row_id: int, body: bytes | None) -> bytes:
    kind = number(0 if body is None else 12 + 2 * len(body))
    record = bytes([2 + len(kind), 0]) + kind + (body or b"")
    return number(len(record)) + number(row_id) + record


def leaf(*rows: bytes, block: tuple[int, int] = (0, 0)) -> bytearray:
    """A leaf with rows at its end, in this order; ``block``: a freed one before them, place and size."""
    data = bytearray(4096)
    at, places = 4096, []
    for each in rows:
        at -= len(each)
        data[at : at + len(each)] = each
        places.append(at)
    place, size = block
    if place:
        struct.pack_into(">HH", data, place, 0, size)
    struct.pack_into(">BHHHB", data, 0, pages.TABLE_LEAF, place, len(rows), place or at, 0)
    struct.pack_into(f">{len(places)}H", data, 8, *places)
    return data


def entries(*children: tuple[int, int], last: int = 9) -> bytearray:
    """An inner page."""
    data = bytearray(4096)
    at, places = 4096, []
    for page, key in children:
        each = struct.pack(">I", page) + number(key)
        at -= len(each)
        data[at : at + len(each)] = each
        places.append(at)
    struct.pack_into(">BHHHBI", data, 0, pages.TABLE_INTERIOR, 0, len(places), at, 0, last)
    struct.pack_into(f">{len(places)}H", data, 12, *places)
    return data


def remains_in(data: bytes | bytearray) -> set[str]:
    found = pages.read_leaf(bytes(data), LAYOUT)
    return {each.kind for each in found.unused if remains.in_leaf(bytes(data), each, LAYOUT) >= 0}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no header"),
        (b"SQLite format 2\0" + bytes(84), "no header"),
        (header(1000), "size of pages"),
        (header(256), "size of pages"),
        (header(512, reserved=40), "size of pages"),
        (header(pages=0), "numbers of pages"),
        (header(free=10), "numbers of pages"),
        (header(trunk=11), "numbers of pages"),
    ],
)
def test_a_header_that_cannot_be_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(MalformedError, match=why):
        pages.read_layout(data)


def test_the_header_says_how_the_file_is_laid_out() -> None:
    assert pages.read_layout(header(1, reserved=8, free=3, trunk=4)) == Layout(65_536, 65_528, 10, 4, 3, True)
    assert [LAYOUT.is_of_map(page) for page in (1, 2, 3, 821, 822, 823)] == [False, True, False, False, True, False]
    assert LAYOUT.begin_of(LAYOUT.lock_page) == pages.LOCK_BYTE


def test_no_page_of_the_map_and_not_the_page_of_locks_holds_data() -> None:
    for page in (0, 1, 2, 1001, 822):
        with pytest.raises(MalformedError):
            LAYOUT.require_page(page, "it")
    with pytest.raises(MalformedError):
        Layout(4096, 4096, 300_000, 0, 0, True).require_page(pages.LOCK_BYTE // 4096 + 1, "it")


def test_rows_with_and_without_a_body_are_told_apart() -> None:
    found = pages.read_leaf(bytes(leaf(row(1, b"x" * 100), row(2, None), row(3, b""))), LAYOUT)
    assert (found.living, found.erased, found.last_row, found.overflows) == (2, 1, 3, [])
    assert sum(each.end - each.begin for each in found.unused) == 4096 - 8 - 6 - 106 - 5 - 5


def test_a_long_body_goes_on_where_the_format_says() -> None:
    whole = row(1, b"x" * 10_000)
    local = pages._local_bytes(len(whole) - 3, 4096)
    cell = whole[: 3 + local] + struct.pack(">I", 55)
    found = pages.read_leaf(bytes(leaf(cell)), LAYOUT)
    assert found.overflows == [(55, len(whole) - 3 - local)]
    page = struct.pack(">I", 56) + b"x" * 4092
    assert pages.read_overflow(page, LAYOUT, 5000)[:2] == (56, 908)
    following, left, unused = pages.read_overflow(bytes(4) + page[4:], LAYOUT, 908)
    assert (following, left, unused) == (0, 0, ByteRange(912, 4096, "end of a body's last page"))
    assert remains.in_free_page(page, unused, LAYOUT) == 912
    with pytest.raises(MalformedError, match="behind its end"):
        pages.read_overflow(page, LAYOUT, 908)


@pytest.mark.parametrize("size", [4, 8, 24, 300])
@pytest.mark.parametrize("fill", [b"\xa7", b"\x31"])
def test_a_remain_in_each_place_of_a_leaf_is_seen(size: int, fill: bytes) -> None:
    top = 3000
    data = leaf(row(5, b"y" * 80), block=(top, 500))
    assert remains_in(data) == set()
    for place, kind in ((1000, "unallocated part"), (top + 4, "freed block"), (top + 500, "fragment")):
        planted = bytearray(data)
        planted[place : place + size] = fill * size
        assert remains_in(planted) == {kind}


def test_the_heads_of_freed_blocks_are_no_remains() -> None:
    """SQLite leaves them where a freed block met the unallocated part."""
    data = leaf(row(1, b"x" * 2000))
    begin = struct.unpack_from(">H", data, 5)[0]
    struct.pack_into(">HH", data, 500, 900, 300)
    struct.pack_into(">HH", data, 900, 0, begin - 900)
    struct.pack_into(">HH", data, 1001, 2600, 20)
    assert remains_in(data) == set()
    struct.pack_into(">HH", data, 500, 700, 300)
    assert remains_in(data) == {"unallocated part"}, "the next block cannot begin within this one"


def test_entries_of_an_inner_page_are_no_remains_and_bodies_are() -> None:
    low = SEGMENT << 32
    data = entries(*((page, low | page * 5) for page in range(10, 60)))
    begin = struct.unpack_from(">H", data, 5)[0]
    data[begin - 45 : begin] = data[begin : begin + 45]  # as after a split: four and a half entries from before
    struct.pack_into(">HH", data, 12 + 2 * 50, begin, begin + 9)
    found = pages.read_interior(bytes(data), LAYOUT)
    assert [child for child, _ in found.children] == list(range(10, 60))
    assert interior_remains(data) == -1
    for body in (b"\xa7" * 24, bytes(range(60, 84)), b"\xa7\0" * 12):
        planted = bytearray(data)
        planted[2000:2024] = body
        assert interior_remains(planted) == 2000


def interior_remains(data: bytes | bytearray) -> int:
    found = pages.read_interior(bytes(data), LAYOUT)
    offsets = [remains.in_interior(bytes(data), each, LAYOUT, SEGMENT) for each in found.unused]
    return max(offsets, default=-1)


def test_numbers_of_pages_in_a_free_page_are_no_remains_and_bodies_are() -> None:
    data = bytearray(4096)
    struct.pack_into(">II", data, 0, 17, 2)
    struct.pack_into(">6I", data, 8, 18, 19, 20, 21, 22, 999)
    trunk = pages.read_trunk(bytes(data), LAYOUT)
    assert (trunk.following, trunk.leaves, trunk.unused.begin) == (17, (18, 19), 16)
    assert remains.in_free_page(bytes(data), trunk.unused, LAYOUT) == -1
    for at in range(100, 104):
        planted = bytearray(data)
        planted[at : at + 24] = b"\xa7" * 24
        assert at <= remains.in_free_page(bytes(planted), trunk.unused, LAYOUT) <= at + 3
    struct.pack_into(">I", data, 4, 5000)
    with pytest.raises(MalformedError, match="too full"):
        pages.read_trunk(bytes(data), LAYOUT)


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (3, 4000, "more rows"),
        (8, 4, "where none can be"),
        (8, 4094, "where none can be"),
        (5, 9, "begin where they cannot"),
        (1, 4095, "freed block"),
        (1, 4040, "overlap"),
    ],
)
def test_a_leaf_that_cannot_be_is_refused(at: int, value: int, why: str) -> None:
    data = leaf(row(1, b"x" * 100))
    struct.pack_into(">H", data, at, value)
    struct.pack_into(">HH", data, 4040, 0, 8)
    with pytest.raises(MalformedError, match=why):
        pages.read_leaf(bytes(data), LAYOUT)


def test_rows_of_other_tables_and_rows_in_disorder_are_refused() -> None:
    other = number(4) + number(1) + bytes([3, 1, 1, 1])
    for data, why in ((leaf(other), "not one of bodies"), (leaf(row(2, b""), row(1, b"")), "not in order")):
        with pytest.raises(MalformedError, match=why):
            pages.read_leaf(bytes(data), LAYOUT)
    with pytest.raises(MalformedError, match="no page of a table"):
        pages.is_leaf(b"\x0a" + bytes(4095))


def read_everything(data: bytes, layout: Layout) -> None:
    """Read a page as each kind of page, and judge whatever is unused in it."""
    with contextlib.suppress(MalformedError):
        for each in pages.read_leaf(data, layout).unused:
            assert 0 <= each.begin <= each.end <= layout.page_bytes
            assert -1 <= remains.in_leaf(data, each, layout) < each.end
    with contextlib.suppress(MalformedError):
        for each in pages.read_interior(data, layout).unused:
            assert -1 <= remains.in_interior(data, each, layout, SEGMENT) < each.end
    with contextlib.suppress(MalformedError):
        trunk = pages.read_trunk(data, layout)
        assert -1 <= remains.in_free_page(data, trunk.unused, layout) < layout.page_bytes
    for left in (1, 100, layout.usable - 4, layout.usable, 1 << 62):
        with contextlib.suppress(MalformedError):
            _, after, unused = pages.read_overflow(data, layout, left)
            assert after < left
            assert -1 <= remains.in_free_page(data, unused, layout) < layout.page_bytes


@settings(max_examples=300)
@given(st.binary(min_size=512, max_size=512), st.sampled_from([0x0D, 0x05, 0x00]), st.integers(0, 40))
@example(b"\xff" * 512, 0x0D, 1)
@example(b"\x80" * 512, 0x05, 3)
def test_whatever_a_page_has_reading_it_ends_and_raises_nothing_else(data: bytes, kind: int, count: int) -> None:
    """Also where it begins as a page does, so that what follows is read."""
    begun = bytes([kind]) + data[1:3] + struct.pack(">H", count) + data[5:]
    for page in (data, begun):
        read_everything(page, SMALL)
        with contextlib.suppress(MalformedError):
            pages.read_layout(page)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 4095), st.binary(min_size=1, max_size=30)), min_size=1, max_size=12))
def test_a_page_that_is_half_written_over_is_read_or_refused(changes: list[tuple[int, bytes]]) -> None:
    rows = [row(SEGMENT << 32 | place, b"x" * 200) for place in range(1, 12)]
    for data in (leaf(*rows), entries(*((page, SEGMENT << 32 | page) for page in range(3, 200)))):
        for at, written in changes:
            data[at : at + len(written)] = written[: 4096 - at]
        read_everything(bytes(data), LAYOUT)


@pytest.mark.parametrize("page_bytes", [512, 1024, 4096, 65_536])
def test_pages_of_any_size_that_sqlite_writes_are_read(tmp_path: Path, page_bytes: int) -> None:
    path = tmp_path / "hot.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            f"PRAGMA page_size = {page_bytes}; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA secure_delete = ON;"
            "CREATE TABLE body_segment_7 (body_id INTEGER PRIMARY KEY, body BLOB) STRICT"
        )
        sizes = [0, 1, 23, 24, 100, 400, 477, 478, 1000, 4000, 9000, 70_000, 200_000] * 6
        for place, size in enumerate(sizes):
            connection.execute("INSERT INTO body_segment_7 VALUES (?, ?)", (7 << 32 | place + 1, b"\xa7" * size))
        connection.execute("UPDATE body_segment_7 SET body = NULL WHERE body_id % 3 = 0")
        connection.commit()
        root = connection.execute("SELECT rootpage FROM sqlite_schema").fetchone()[0]
    data = path.read_bytes()
    layout = pages.read_layout(data)
    assert layout.page_bytes == page_bytes
    erased = living = 0
    waiting = [root]
    while waiting:
        page = data[layout.begin_of(waiting[-1]) :][: layout.page_bytes]
        waiting.pop()
        if not pages.is_leaf(page):
            inner = pages.read_interior(page, layout)
            waiting += [inner.last_child, *(child for child, _ in inner.children)]
            assert all(remains.in_interior(page, each, layout, SEGMENT) == -1 for each in inner.unused)
            continue
        found = pages.read_leaf(page, layout)
        erased, living = erased + found.erased, living + found.living
        assert all(remains.in_leaf(page, each, layout) == -1 for each in found.unused)
        for at, size in found.overflows:
            following, left = at, size
            while left:
                part = data[layout.begin_of(following) :][: layout.page_bytes]
                following, left, unused = pages.read_overflow(part, layout, left)
                assert remains.in_free_page(part, unused, layout) == -1
    assert (erased, living) == (len(sizes) // 3, len(sizes) - len(sizes) // 3)


def test_the_tables_of_bodies_are_as_the_pages_are_read(tmp_path: Path) -> None:
    """If a body table gets another shape, its rows are no longer read, and this says so first."""
    stores.prepare(tmp_path / "hot.db")
    with closing(sqlite.connect(tmp_path / "hot.db")) as connection:
        bodies.put(connection, b"x")
        columns = connection.execute("SELECT name, type, pk FROM pragma_table_info('body_segment_1')").fetchall()
        assert [tuple(each) for each in columns] == [("body_id", "INTEGER", 1), ("body", "BLOB", 0)]
