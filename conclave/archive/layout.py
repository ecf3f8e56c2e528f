"""Where a message lies in the archive: pure functions of its group's retention and its time.

What expires together lies together, so that most expiry drops whole parts; and few parts hold a long history, so that
a page of a group that says little does not open a hundred files.
"""

from conclave.retention.policy import KEEP

ID_PROPERTY = "conclave.archiveId"
"""The table property that names the store whose archive this is."""

DAY = 86_400
KEEP_WIDTH = 30 * DAY
"""The width of a span whose messages never expire by time, and the greatest of all."""

SPANS = 32
"""About how many spans a class has at most: its lifetime over their width."""


def span_width(lifetime: int) -> int:
    """Return the width in seconds, whole days, of the time spans of the class ``lifetime``: seconds, or KEEP."""
    if lifetime == KEEP:
        return KEEP_WIDTH
    days = -(-lifetime // (SPANS * DAY))
    return min(max(1, days) * DAY, KEEP_WIDTH)


def span_of(lifetime: int, created_at: int) -> int:
    """Return the first Unix second of the span that holds a message of the second ``created_at``."""
    return created_at - created_at % span_width(lifetime)
