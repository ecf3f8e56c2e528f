"""The checksum of a message in the archive, computed as Spark's ``xxhash64`` does when the message is archived.

It covers all columns but the partition's, so a message whose bytes were altered on the disk is never taken for right.
"""

import struct
from collections.abc import Iterable, Iterator

_SEED = 42
"""The seed with which Spark begins."""

_WRAP, _HALF = 1 << 64, 1 << 63
_LONG, _INT = struct.Struct("<q"), struct.Struct("<i")


class DamagedError(Exception):
    """A message is not as it was archived. The message of the error is its sequence number."""

    def __init__(self, sequence_num: int) -> None:
        """Take the number of the message."""
        super().__init__(str(sequence_num))
        self.sequence_num = sequence_num


Checked = tuple[int, int, bytes, bool, int, bytes]
"""What the checksum of a message covers: group key, number, sender, whether it is a commit, Unix second, body."""


def checksums(messages: Iterable[Checked]) -> Iterator[int]:
    """Yield the checksum of each message, a signed number of 64 bits: the only place that has the rule."""
    from xxhash import xxh64_intdigest as digest  # noqa: PLC0415 - a server without an archive does not pay for it

    long, flags = _LONG.pack, (_INT.pack(0), _INT.pack(1))
    for group_key, sequence_num, sender_id, is_commit, created_at, body in messages:
        # Each column is the seed of the next one's hash.
        found = digest(long(sequence_num), digest(long(group_key), _SEED))
        found = digest(flags[is_commit], digest(sender_id, found))
        found = digest(body, digest(long(created_at), found))
        yield found - _WRAP if found >= _HALF else found


def checksum(
    group_key: int, sequence_num: int, sender_id: bytes, created_at: int, body: bytes, *, is_commit: bool
) -> int:
    """Return the checksum of one message."""
    return next(checksums([(group_key, sequence_num, sender_id, is_commit, created_at, body)]))


def require_sound(
    group_key: int, sequence_num: int, sender_id: bytes, created_at: int, body: bytes, stored: int, *, is_commit: bool
) -> None:
    """Raise DamagedError unless a message has the checksum ``stored``, with which it was archived."""
    if checksum(group_key, sequence_num, sender_id, created_at, body, is_commit=is_commit) != stored:
        raise DamagedError(sequence_num)
