"""Tells remains of a body from what SQLite itself leaves in unused bytes. Pure.

SQLite zeroes what it frees, as ``secure_delete`` asks. But it leaves numbers of its own where they were: how long a
freed block was, which pages were free, which rows a page began with. They are no content, and nothing else is taken for
them: they are recognised as what they are, by their place and their value. All else that is not zero is a remain.
"""

import struct

from conclave.proof.pages import ByteRange, Layout, first_used

HIGHEST_PAGE = 1 << 26
"""Numbers below 2 ** 26 (256 GiB at 4 KiB a page) may be those of pages that were free, also of a file that shrank."""

CUT_BYTES = 12
"""At most 12 bytes in a row may be what is left of an entry of an inner page: it has 4 to 13."""

_SHIFT = 32
"""A body's id holds its segment above this bit."""


def in_leaf(data: bytes, stretch: ByteRange, layout: Layout) -> int:
    """Return the offset of the first remain in unused bytes of a leaf; -1 if there is none.

    In the unallocated part there may be the heads of blocks that were freed at its border: two numbers of 2 bytes, the
    next block and the size.
    """
    begin = first_used(data, *stretch[:2])
    if begin < 0 or stretch.kind != "unallocated part":
        return begin
    waiting, seen = [begin], {begin}
    while waiting:
        at = first_used(data, waiting.pop(), stretch.end)
        if at < 0:
            return -1
        for head in range(at, max(stretch.begin, at - 3) - 1, -1):
            if head + 4 not in seen and _is_head(data, head, stretch.end, layout):
                seen.add(head + 4)
                waiting.append(head + 4)
    return begin


def in_free_page(data: bytes, stretch: ByteRange, layout: Layout) -> int:
    """Return the offset of the first remain in a free page, or behind the end of a body; -1 if there is none.

    A page that had a part of the list of free pages keeps numbers of pages, 4 bytes each.
    """
    begin = first_used(data, *stretch[:2])
    if begin < 0:
        return -1
    highest = max(HIGHEST_PAGE, layout.pages)
    for at in range(begin - begin % 4, stretch.end, 4):
        word = data[max(at, stretch.begin) : min(at + 4, stretch.end)]  # the body may end within a number
        if int.from_bytes(word, "big") > highest:
            return max(at, begin)
    return -1


def in_interior(data: bytes, stretch: ByteRange, layout: Layout, segment: int) -> int:
    """Return the offset of the first remain in unused bytes of an inner page; -1 if there is none.

    No body was ever there. But inner pages keep what they had before a split: places of entries, 2 bytes each, and
    entries, a page and the id of a body of ``segment``. Of an entry that was partly written over, some bytes are left.
    """
    at = stretch.begin
    if stretch.kind == "unallocated part":
        while at + 2 <= stretch.end and 12 <= struct.unpack_from(">H", data, at)[0] <= layout.usable - 4:
            at += 2
    cut = at
    while (found := first_used(data, at, stretch.end)) >= 0:
        if found - at >= 4:
            cut = found
        if end := _entry_end(data, found, stretch.end, segment):
            if _is_too_long(data, cut, found):
                return cut
            at = cut = end
            continue
        at = found + 1
        if _is_too_long(data, cut, at):
            return cut
    return -1


def _is_too_long(data: bytes, begin: int, end: int) -> bool:
    return end - begin > CUT_BYTES and first_used(data, begin, end) >= 0


def _is_head(data: bytes, at: int, end: int, layout: Layout) -> bool:
    """Tell whether the head of a freed block may lie there: the next block lies behind this one."""
    if at + 4 > end:
        return False
    following, size = struct.unpack_from(">HH", data, at)
    behind = at + size
    return size >= 4 and behind <= layout.usable and (not following or behind <= following <= layout.usable - 4)


def _entry_end(data: bytes, begin: int, end: int, segment: int) -> int:
    """Return where an entry ends that begins at most 3 bytes (zeros of its page) before ``begin``; 0 if none does."""
    for start in range(begin, begin - 4, -1):
        key, at = 0, start + 4
        while at < min(end, start + 12):
            key = key << 7 | data[at] & 0x7F
            at += 1
            if data[at - 1] < 0x80:
                page = int.from_bytes(data[start : start + 4], "big")
                if start >= 0 and 0 < page <= HIGHEST_PAGE and key >> _SHIFT == segment and key & 0xFFFFFFFF:
                    return at
                break
    return 0
