"""Reads of a group info which MLS group it is of, and at which epoch, where it is written as MLS has it (RFC 9420)."""

import struct
from typing import NamedTuple

_HEAD = struct.Struct(">HHHH")
"""Version and wire format of the MLSMessage, then version and cipher suite of the GroupContext (sections 6 and 8.1)."""

_MLS10 = 1
_GROUP_INFO = 4
_LONGEST_LENGTH = 4
_EPOCH = struct.Struct(">Q")


class Epoch(NamedTuple):
    """An epoch of an MLS group."""

    mls_group: bytes
    number: int


def epoch_of(group_info: bytes) -> Epoch | None:
    """Return the epoch of a group info; None if it is not an MLSMessage of MLS 1.0 with a GroupInfo in the clear.

    Only what precedes the epoch is looked at.
    """
    if len(group_info) <= _HEAD.size:
        return None
    version, wire_format, of_context, _ = _HEAD.unpack_from(group_info)
    if (version, wire_format, of_context) != (_MLS10, _GROUP_INFO, _MLS10):
        return None
    # The length of the id has 1, 2 or 4 bytes, as its first two bits say, and no more than it takes (section 2.1.2).
    first = group_info[_HEAD.size]
    size = 1 << (first >> 6)
    begin = _HEAD.size + size
    if size > _LONGEST_LENGTH or len(group_info) < begin:
        return None
    length = int.from_bytes(group_info[_HEAD.size : begin], "big") & ((1 << (8 * size - 2)) - 1)
    end = begin + length
    is_longer_than_needed = size > 1 and length < 1 << (4 * size - 2)
    if is_longer_than_needed or len(group_info) < end + _EPOCH.size:
        return None
    return Epoch(group_info[begin:end], _EPOCH.unpack_from(group_info, end)[0])


def is_outdated(group_info: bytes, by: bytes, *, with_commit: bool) -> bool:
    """Return whether a group info is of an earlier epoch of the same MLS group than another, the one ``by``.

    ``with_commit``: it came with the commit that leads into its epoch. Then it is outdated too if the other one is of
    the same epoch: another commit led there first, and of two commits for one epoch the first counts. False if either
    cannot be read.
    """
    own, other = epoch_of(group_info), epoch_of(by)
    return bool(own and other and own.mls_group == other.mls_group and own.number < other.number + with_commit)
