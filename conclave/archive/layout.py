"""The layout of the archive: the partition of a message, how files are made, and the checksum of a message. Pure.

A partition has a class, the lifetime of its messages, and a span, a range of time. Messages that expire together lie
together, so that expiry mostly drops whole partitions. Few partitions hold a long history, so that a page of a group
with few messages does not open a hundred files.

The checksum is the one that Spark's ``xxhash64`` computes when the message is archived. It covers all columns but the
partition's, so a message whose bytes were altered on the disk is never taken for right.
"""

import struct
from collections.abc import Iterable, Iterator

from conclave.retention.policy import KEEP

ID_PROPERTY = "conclave.archiveId"
"""The table property that names the store whose archive this is."""

DAY = 86_400
"""Seconds of a day."""

KEEP_WIDTH = 30 * DAY
"""A span of messages that never expire by time has 30 days, in seconds. No span is wider."""

FILE_BYTES = 64 * 1024 * 1024
"""A file has about 64 MiB at most."""

ROW_GROUP_BYTES = 4 * 1024 * 1024
"""A row group of a file has 4 MiB: a reader of one group's messages has to read at least that much."""

PAGE_ROWS = 1000
"""A page has at most 1,000 messages, so that reading one group decodes little."""

SPANS = 32
"""A class has about 32 spans at most, as long as none is wider than KEEP_WIDTH."""


def span_width(lifetime: int) -> int:
    """Return how many seconds a span of the class ``lifetime`` has; these are whole days.

    ``lifetime``: seconds or KEEP.
    """
    if lifetime == KEEP:
        return KEEP_WIDTH
    days = -(-lifetime // (SPANS * DAY))
    return min(max(1, days) * DAY, KEEP_WIDTH)


def span_of(lifetime: int, created_at: int) -> int:
    """Return the first Unix second of the span that has a message created at the second ``created_at``."""
    return created_at - created_at % span_width(lifetime)


def in_partitions(partitions: Iterable[tuple[int, int]], prefix: str = "") -> str:
    """Return the SQL condition for messages in any of ``partitions``, given as (lifetime, span).

    It has literals, so that no file of another partition is opened. ``prefix``: goes before column names.
    """
    spans: dict[int, list[int]] = {}
    for lifetime, span in sorted(partitions):
        spans.setdefault(lifetime, []).append(span)
    classes = (
        f"{prefix}lifetime = {lifetime:d} AND {prefix}span IN ({', '.join(map(str, each))})"
        for lifetime, each in spans.items()
    )
    return f"({' OR '.join(classes)})"


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
