"""Reads pages of a SQLite file as its format says, and finds the bytes in them that belong to nothing. Pure.

What is given may be damaged, or planted: every number is checked before it is used, and nothing is followed further
than the page is long. What cannot be read raises MalformedError, and nothing else.

Offsets are those in the page. Sources: the file format as SQLite documents it, sections 1.3 to 1.8.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

MAGIC = b"SQLite format 3\0"

HEADER_BYTES = 100
"""The database's header is 100 bytes long. It is the beginning of page 1."""

LOCK_BYTE = 0x40000000
"""The page with this byte of the file is never used: it is there for locks."""

SMALLEST_PAGE, LARGEST_PAGE = 512, 65_536

LEAST_USABLE = 480
"""At least 480 bytes of a page are usable, however many are reserved."""

TABLE_LEAF, TABLE_INTERIOR = 0x0D, 0x05

_ENTRY_BYTES = 5
_ZEROS = bytes(LARGEST_PAGE)


class MalformedError(Exception):
    """A page is not what it should be. The message says why, without any content."""


class ByteRange(NamedTuple):
    """Bytes of a page that belong to nothing. ``end`` is exclusive."""

    begin: int
    end: int
    kind: str
    """Where they are, in a word or two."""


@dataclass(frozen=True)
class Layout:
    """What the database's header says."""

    page_bytes: int
    usable: int
    """How many bytes of a page SQLite uses."""
    pages: int
    """How many pages the database has."""
    first_trunk: int
    """The first page of the list of free pages, 0 for none."""
    free: int
    """How many pages are free."""
    has_pointer_map: bool

    @property
    def lock_page(self) -> int:
        """The page that is never used; a smaller file does not have it."""
        return LOCK_BYTE // self.page_bytes + 1

    def begin_of(self, page: int) -> int:
        """Return the offset of a page in the file."""
        return (page - 1) * self.page_bytes

    def map_page_of(self, page: int) -> int:
        """Return the page of the pointer map that tells of ``page``, which is itself if it is one of the map's."""
        each = self.usable // _ENTRY_BYTES + 1
        found = (page - 2) // each * each + 2
        return found + 1 if found == self.lock_page else found

    def is_of_map(self, page: int) -> bool:
        """Tell whether a page is one of the pointer map."""
        return self.has_pointer_map and page > 1 and self.map_page_of(page) == page

    def require_page(self, page: int, what: str) -> int:
        """Return ``page`` if it can hold data. Raises MalformedError."""
        if not 1 < page <= self.pages or page == self.lock_page or self.is_of_map(page):
            raise MalformedError(f"{what} is page {page}, which cannot be")
        return page


@dataclass
class Leaf:
    """What a leaf of a body table has.

    ``living`` and ``erased``: how many rows with and without a body.
    """

    last_row: int = 0
    living: int = 0
    erased: int = 0
    overflows: list[tuple[int, int]] = field(default_factory=list)
    """Of each body that goes on in other pages, the first of these and how many bytes are there."""
    unused: list[ByteRange] = field(default_factory=list)


@dataclass
class Interior:
    """What an inner page of a table has."""

    children: list[tuple[int, int]] = field(default_factory=list)
    """Pages, with the greatest row id that each may have."""
    last_child: int = 0
    unused: list[ByteRange] = field(default_factory=list)


@dataclass
class Trunk:
    """A page of the list of free pages."""

    following: int
    leaves: tuple[int, ...]
    unused: ByteRange


def read_layout(header: bytes) -> Layout:
    """Read the database's header. Raises MalformedError."""
    if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
        raise MalformedError("there is no header of a SQLite database")
    (size,) = struct.unpack_from(">H", header, 16)
    page_bytes = LARGEST_PAGE if size == 1 else size
    usable = page_bytes - header[20]
    if not SMALLEST_PAGE <= page_bytes <= LARGEST_PAGE or page_bytes & (page_bytes - 1) or usable < LEAST_USABLE:
        raise MalformedError("the header has a size of pages that cannot be")
    pages, first_trunk, free = struct.unpack_from(">III", header, 28)
    (largest_root,) = struct.unpack_from(">I", header, 52)
    if not pages or free >= pages or first_trunk > pages:
        raise MalformedError("the header has numbers of pages that cannot be")
    return Layout(page_bytes, usable, pages, first_trunk, free, bool(largest_root))


def first_used(data: bytes, begin: int, end: int) -> int:
    """Return the offset of the first byte from ``begin`` to ``end`` (exclusive) that is not zero; -1 if all are."""
    part = data[begin:end]
    if part == _ZEROS[: len(part)]:
        return -1
    return begin + len(part) - len(part.lstrip(b"\0"))


def read_trunk(data: bytes, layout: Layout) -> Trunk:
    """Read a page of the list of free pages. Raises MalformedError."""
    following, count = struct.unpack_from(">II", data)
    if count > layout.usable // 4 - 2:
        raise MalformedError("the list of free pages has a page that is too full")
    leaves = struct.unpack_from(f">{count}I", data, 8)
    for each in (*leaves, following) if following else leaves:
        layout.require_page(each, "a free page")
    return Trunk(following, leaves, ByteRange(8 + 4 * count, layout.page_bytes, "free page"))


def is_leaf(data: bytes) -> bool:
    """Tell whether a page of a table is a leaf. Raises MalformedError if it is no page of a table."""
    if data[0] not in (TABLE_LEAF, TABLE_INTERIOR):
        raise MalformedError(f"is no page of a table, but of type {data[0]}")
    return data[0] == TABLE_LEAF


def read_interior(data: bytes, layout: Layout) -> Interior:
    """Read an inner page of a table (not page 1). Raises MalformedError."""
    found = Interior(last_child=layout.require_page(struct.unpack_from(">I", data, 8)[0], "a child"))
    extents, former = [], -(2**63) - 1
    for begin in _cells(data, layout, 12):
        (child,) = struct.unpack_from(">I", data, begin)
        key, end = _number(data, begin + 4, layout.usable)
        if key <= former:
            raise MalformedError("the rows are not in order")
        former = key
        found.children.append((layout.require_page(child, "a child"), key))
        extents.append((begin, end))
    found.unused = list(_unused(data, layout, 12 + 2 * len(extents), extents))
    return found


def read_leaf(data: bytes, layout: Layout) -> Leaf:
    """Read a leaf of a body table. Raises MalformedError."""
    found = Leaf(last_row=-(2**63) - 1)
    extents = []
    for begin in _cells(data, layout, 8):
        size, at = _number(data, begin, layout.usable)
        row, at = _number(data, at, layout.usable)
        if row <= found.last_row:
            raise MalformedError("the rows are not in order")
        found.last_row = row
        if size < 0:
            raise MalformedError("a row has a size that cannot be")
        local = _local_bytes(size, layout.usable)
        end = at + local + (4 if local < size else 0)
        if end > layout.usable:
            raise MalformedError("a row goes beyond its page")
        if _body_bytes(data, at, at + local) is None:
            found.erased += 1
        else:
            found.living += 1
        if local < size:
            (first,) = struct.unpack_from(">I", data, at + local)
            found.overflows.append((layout.require_page(first, "where a body goes on"), size - local))
        extents.append((begin, max(end, begin + 4)))
    found.unused = list(_unused(data, layout, 8 + 2 * len(extents), extents))
    return found


def read_overflow(data: bytes, layout: Layout, left: int) -> tuple[int, int, ByteRange]:
    """Read a page in which a body goes on, and of which ``left`` bytes are still to come, at least one.

    Returns the next page (0 for none), how many bytes are left then, and what is unused. Raises MalformedError.
    """
    (following,) = struct.unpack_from(">I", data)
    room = layout.usable - 4
    if left > room:
        reserved = ByteRange(layout.usable, layout.page_bytes, "reserved part")
        return layout.require_page(following, "where a body goes on"), left - room, reserved
    if following:
        raise MalformedError("a body goes on behind its end")
    return 0, 0, ByteRange(4 + left, layout.page_bytes, "end of a body's last page")


def _cells(data: bytes, layout: Layout, begin: int) -> Iterator[int]:
    """Yield where the rows of a page lie. ``begin``: of the list of them."""
    (count,) = struct.unpack_from(">H", data, 3)
    end = begin + 2 * count
    if end > layout.usable:
        raise MalformedError("has more rows than there is room for")
    for cell in struct.unpack_from(f">{count}H", data, begin):
        if not end <= cell <= layout.usable - 4:
            raise MalformedError("a row lies where none can be")
        yield cell


def _unused(data: bytes, layout: Layout, begin: int, extents: list[tuple[int, int]]) -> Iterator[ByteRange]:
    """Yield what is unused of a page of a table. ``begin``: the end of its list of rows. ``extents``: its rows."""
    first_block, _, content = struct.unpack_from(">HHH", data, 1)
    content = content or LARGEST_PAGE
    if not begin <= content <= layout.usable:
        raise MalformedError("its rows begin where they cannot")
    yield ByteRange(begin, content, "unallocated part")
    blocks = list(_blocks(data, layout, first_block))
    for start, end in blocks:
        yield ByteRange(start + 4, end, "freed block")
    at = content
    for start, end in sorted([*extents, *blocks]):
        if start < at:
            raise MalformedError("rows overlap")
        if start > at:
            yield ByteRange(at, start, "fragment")
        at = end
    if at < layout.page_bytes:
        yield ByteRange(at, layout.page_bytes, "fragment")


def _blocks(data: bytes, layout: Layout, at: int) -> Iterator[tuple[int, int]]:
    """Yield the blocks that were freed between the rows of a page; the first lies at ``at``, 0 for none.

    Each begins with 4 bytes of its own: the next block, and its size.
    """
    former = 0
    while at:
        if not former < at <= layout.usable - 4:
            raise MalformedError("a freed block lies where none can be")
        following, size = struct.unpack_from(">HH", data, at)
        if size < 4 or at + size > layout.usable:
            raise MalformedError("a freed block has a size that cannot be")
        yield at, at + size
        former, at = at, following


def _local_bytes(size: int, usable: int) -> int:
    """Return how many bytes of a row of ``size`` bytes lie in the page itself."""
    most = usable - 35
    if size <= most:
        return size
    least = (usable - 12) * 32 // 255 - 23
    local = least + (size - least) % (usable - 4)
    return local if local <= most else least


def _body_bytes(data: bytes, begin: int, end: int) -> int | None:
    """Return how long the body of a row is; None if it is NULL. Raises MalformedError if it is no row of bodies."""
    header, at = _number(data, begin, end)
    first, at = _number(data, at, end)
    kind, at = _number(data, at, end)
    if first or at - begin != header:
        raise MalformedError("a row is not one of bodies")
    if not kind:
        return None
    if kind < 12 or kind % 2:
        raise MalformedError("a row is not one of bodies")
    return (kind - 12) // 2


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a number of variable length that has to lie before ``end``; return it, and where it ends."""
    value = 0
    for place in range(at, min(at + 8, end)):
        byte = data[place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + 1
    if at + 8 >= end:
        raise MalformedError("a number goes beyond its row")
    value = value << 8 | data[at + 8]
    return value - (1 << 64) if value >= 1 << 63 else value, at + 9
