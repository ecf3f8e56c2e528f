"""The checksum of a message in the archive, computed as Spark's ``xxhash64`` does when the message is archived.

It covers all columns but the partition's, so a message whose bytes were altered on the disk is never taken for right.
"""

import struct

_SEED = 42
"""The seed with which Spark begins."""

_WRAP = 1 << 64
_LONG, _INT = struct.Struct("<q"), struct.Struct("<i")


class DamagedError(Exception):
    """A message is not as it was archived. The message of the error is its sequence number."""

    def __init__(self, sequence_num: int) -> None:
        """Take the number of the message."""
        super().__init__(str(sequence_num))
        self.sequence_num = sequence_num


def checksum(
    group_key: int, sequence_num: int, sender_id: bytes, created_at: int, body: bytes, *, is_commit: bool
) -> int:
    """Return the checksum of a message, a signed number of 64 bits. ``created_at``: Unix seconds."""
    import xxhash  # noqa: PLC0415 - a server without an archive does not pay for it

    digest = xxhash.xxh64_intdigest
    # Each column is the seed of the next one's hash.
    found = digest(_LONG.pack(sequence_num), digest(_LONG.pack(group_key), _SEED))
    found = digest(_INT.pack(is_commit), digest(sender_id, found))
    found = digest(body, digest(_LONG.pack(created_at), found))
    return found - _WRAP if found >= _WRAP // 2 else found


def require_sound(
    group_key: int, sequence_num: int, sender_id: bytes, created_at: int, body: bytes, stored: int, *, is_commit: bool
) -> None:
    """Raise DamagedError unless a message has the checksum ``stored``, with which it was archived."""
    if checksum(group_key, sequence_num, sender_id, created_at, body, is_commit=is_commit) != stored:
        raise DamagedError(sequence_num)
