"""Defines the layout of the archive: partitions, file sizes, and the checksum of a message. Pure functions.

A partition has a class, the lifetime of its messages, and a span, a range of time. Messages that expire together are
stored together, so that expiry mostly drops whole partitions. The number of partitions is bounded, so that a page of a
small group does not open a hundred files.

The checksum is the one that Spark's ``xxhash64`` computes when the message is archived. It covers all columns except
the partition's, so that readers detect messages altered on disk.
"""

import struct
from collections.abc import Iterable, Iterator

from conclave.retention.policy import KEEP

ID_PROPERTY = "conclave.archiveId"
"""The table property with the id of the store that owns the archive."""

DAY = 86_400
"""The seconds of a day."""

KEEP_WIDTH = 30 * DAY
"""The width of a span of messages that never expire, in seconds, and the maximum width of any span."""

FILE_BYTES = 64 * 1024 * 1024
"""The target size of a data file."""

ROW_GROUP_BYTES = 4 * 1024 * 1024
"""The size of a row group, which is the minimum that a reader of one group's messages reads."""

PAGE_ROWS = 1000
"""The maximum messages of a Parquet page. Small pages limit the data that a reader of one group has to decode."""

SPANS = 32
"""The target number of spans in a class. The limit KEEP_WIDTH takes precedence."""


def span_width(lifetime: int) -> int:
    """Return the width of a span of the class ``lifetime`` in seconds, a multiple of a day.

    ``lifetime``: seconds or KEEP.
    """
    if lifetime == KEEP:
        return KEEP_WIDTH
    days = -(-lifetime // (SPANS * DAY))
    return min(max(1, days) * DAY, KEEP_WIDTH)


def in_partitions(partitions: Iterable[tuple[int, int]], prefix: str = "") -> str:
    """Return the SQL condition for messages in any of ``partitions``: pairs of lifetime and span.

    It uses literals, so that files of other partitions are not opened. ``prefix``: prepended to column names.
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
"""The initial seed of Spark's ``xxhash64``."""

_WRAP, _HALF = 1 << 64, 1 << 63
_LONG, _INT = struct.Struct("<q"), struct.Struct("<i")


class DamagedMessageError(Exception):
    """A message has a wrong checksum. The text of the error is its sequence number."""

    def __init__(self, sequence_num: int) -> None:
        """``sequence_num``: the number of the message."""
        super().__init__(str(sequence_num))
        self.sequence_num = sequence_num


ChecksumInput = tuple[int, int, bytes, bool, int, bytes]
"""The input of a checksum: group key, number, sender, whether it is a commit, Unix second, body."""


def checksums(messages: Iterable[ChecksumInput]) -> Iterator[int]:
    """Yield the checksum of each message, a signed 64-bit number."""
    from xxhash import xxh64_intdigest as digest  # noqa: PLC0415 - loaded only if there is an archive

    long, flags = _LONG.pack, (_INT.pack(0), _INT.pack(1))
    for group_key, sequence_num, sender_id, is_commit, created_at, body in messages:
        # The hash of each column is the seed for the next one.
        value = digest(long(sequence_num), digest(long(group_key), _SEED))
        value = digest(flags[is_commit], digest(sender_id, value))
        value = digest(body, digest(long(created_at), value))
        yield value - _WRAP if value >= _HALF else value


def checksum(
    group_key: int, sequence_num: int, sender_id: bytes, created_at: int, body: bytes, *, is_commit: bool
) -> int:
    """Return the checksum of one message."""
    return next(checksums([(group_key, sequence_num, sender_id, is_commit, created_at, body)]))


def verify_checksum(
    group_key: int, sequence_num: int, sender_id: bytes, created_at: int, body: bytes, stored: int, *, is_commit: bool
) -> None:
    """Raise DamagedMessageError unless a message has the checksum ``stored``."""
    if checksum(group_key, sequence_num, sender_id, created_at, body, is_commit=is_commit) != stored:
        raise DamagedMessageError(sequence_num)
