"""Tells in which partition of the archive a message lies, by its class and its time, and how its files are made. Pure.

A partition has a class, the lifetime of its messages, and a span, a range of time. Messages that expire together lie
together, so that expiry mostly drops whole partitions. Few partitions hold a long history, so that a page of a group
with few messages does not open a hundred files.
"""

from collections.abc import Iterable

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
