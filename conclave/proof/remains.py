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
    next block and the size. The list of rows may have grown over the beginning of the first. A later row may have been
    written over the end of one; what lies right behind is that row, or the head that it left when it was freed. Before
    all heads there may be numbers of pages, see ``_list_ends``.
    """
    begin = first_used(data, *stretch[:2])
    if begin < 0 or stretch.kind != "unallocated part":
        return begin
    waiting = _list_ends(data, stretch, layout)
    waiting += ((stretch.begin + left, False) for left in range(4) if _may_end_head(data, stretch.begin, left, layout))
    seen = set(waiting)
    while waiting:
        at, is_cut = waiting.pop()
        found = first_used(data, at, stretch.end)
        if at >= stretch.end or (found < 0 and not is_cut):
            return -1
        after = []
        for head in (at,) if is_cut else range(found, max(at, found - 3) - 1, -1):
            if _is_head(data, head, stretch.end, layout):
                after.append((head + 4, False))
            if not is_cut:
                after += ((head + left, True) for left in (1, 2, 3) if _may_begin_head(data, head, left, layout))
        waiting += (each for each in after if each not in seen and each[0] <= stretch.end)
        seen.update(after)
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

    No body was ever there. But inner pages keep what they had before a split: places of entries, 2 bytes each, perhaps
    numbers of pages, see ``_list_ends``, and entries, a page and the id of a body of ``segment``. The list of places
    may have grown over the beginning of the first. Of an entry that was partly written over, some bytes are left.
    """
    at = stretch.begin
    if stretch.kind == "unallocated part":
        while at + 2 <= stretch.end and 12 <= struct.unpack_from(">H", data, at)[0] <= layout.usable - 4:
            at += 2
        rest = ByteRange(at, *stretch[1:])
        numbers = [end for end, is_cut in _list_ends(data, rest, layout) if not is_cut]
        at = _tail_end(data, rest, segment) or max(numbers, default=at)
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


def _list_ends(data: bytes, stretch: ByteRange, layout: Layout) -> list[tuple[int, bool]]:
    """Return where numbers of pages may end with which a stretch begins, and whether a row was written over the last.

    When the root of a table is full, its rows move to another page. If that had a part of the list of free pages, the
    numbers stay where no row is: 4 bytes each, none of them 0.
    """
    ends: list[tuple[int, bool]] = []
    highest = max(HIGHEST_PAGE, layout.pages)
    at, number = stretch.begin, 1
    while at < stretch.end and 0 < number <= highest:
        behind = at - at % 4 + 4
        number = int.from_bytes(data[at:behind], "big") or at % 4  # the list of rows may have grown over the first
        ends += (
            (end, True)
            for end in range(at + 1, min(behind, stretch.end + 1))
            if int.from_bytes(data[at:end], "big") << 8 * (behind - end) <= highest
        )
        if behind <= stretch.end and 0 < number <= highest:
            ends.append((behind, False))
        at = behind
    return ends


def _may_begin_head(data: bytes, at: int, left: int, layout: Layout) -> bool:
    """Tell whether ``left`` bytes, 1 to 3, may be the beginning of the head of a freed block."""
    begun = data[at : at + left] + bytes(4 - left)
    following, size = int.from_bytes(begun[:2], "big"), int.from_bytes(begun[2:], "big")
    most = following | 0xFF if left == 1 else following
    return at + max(size, 4) <= layout.usable and (not most or at + max(size, 4) <= most) and following <= layout.usable


def _may_end_head(data: bytes, at: int, left: int, layout: Layout) -> bool:
    """Tell whether ``left`` bytes, at most 3, may be the end of the head of a freed block."""
    size = int.from_bytes(data[at : at + left][-2:], "big")
    return left < 2 or (size >= 4 and at + left - 4 + size <= layout.usable)


def _is_head(data: bytes, at: int, end: int, layout: Layout) -> bool:
    """Tell whether the head of a freed block may lie there: the next block lies behind this one."""
    if at + 4 > end:
        return False
    following, size = struct.unpack_from(">HH", data, at)
    behind = at + size
    return size >= 4 and behind <= layout.usable and (not following or behind <= following <= layout.usable - 4)


def _entry_end(data: bytes, begin: int, end: int, segment: int) -> int:
    """Return where an entry ends that begins at most 4 bytes (its page, or zeros of it) before ``begin``; 0 if none."""
    for start in range(begin, max(begin - 5, -1), -1):
        if 0 < int.from_bytes(data[start : start + 4], "big") <= HIGHEST_PAGE:
            whole = _key_end(data, start + 4, end, segment)
            if whole > begin or (whole := _cut_key_end(data, start + 4, end, segment)) > begin:
                return whole
    return 0


def _tail_end(data: bytes, stretch: ByteRange, segment: int) -> int:
    """Return where an entry ends that lost its beginning, if a stretch begins within it; 0 otherwise."""
    for at in range(stretch.begin + 3, stretch.begin - 1, -1):
        if end := _key_end(data, at, stretch.end, segment) or _cut_key_end(data, at, stretch.end, segment):
            return end
    for at in range(stretch.begin, min(stretch.begin + _key_bytes(segment) - 1, stretch.end)):
        if data[at] < 0x80:
            return at + 1 if at > stretch.begin else 0
    return 0


def _key_bytes(segment: int) -> int:
    return (_SHIFT + segment.bit_length() + 6) // 7


def _key_end(data: bytes, begin: int, end: int, segment: int) -> int:
    """Return where the id of a body of ``segment`` ends that begins there, 0 if none does."""
    count = _key_bytes(segment)
    return begin + count if begin + count <= end and _begins_key(data[begin : begin + count], segment) else 0


def _cut_key_end(data: bytes, begin: int, end: int, segment: int) -> int:
    """Return where an id breaks off that begins there: at the end, or at another entry; 0 otherwise."""
    for at in range(begin + 1, min(begin + _key_bytes(segment), end + 1)):
        if not _begins_key(data[begin:at], segment):
            break
        if at == end or (any(data[at : at + 4]) and _key_end(data, at + 4, end, segment)):
            return at
    return 0


def _begins_key(data: bytes, segment: int) -> bool:
    """Tell whether these are the first bytes, or all, of the id of a body of ``segment``."""
    left = _key_bytes(segment) - len(data)
    key = 0
    for byte in data:
        key = key << 7 | byte & 0x7F
    is_whole = data[-1] < 0x80
    if is_whole != (not left) or any(byte < 0x80 for byte in data[:-1]):
        return False
    return key >> max(0, _SHIFT - 7 * left) == segment >> max(0, 7 * left - _SHIFT)
