"""How a page asks the archive: how far to look, and in which words. Pure."""

import math
from collections.abc import Sequence

from conclave.store.archive import Part, Stretch

MESSAGE_COLUMNS = "sequence_num, sender_id, mls_message, created_at"

SIZE_COLUMNS = "sequence_num, octet_length(encode(mls_message, 'hex')) / 2"
"""DataFusion tells the length of texts only."""


def reach(parts: Sequence[Part], after: int, border: int, wanted: int) -> int:
    """Return the number, at most ``border``, up to which about ``wanted`` messages follow on ``after``.

    Exact where no number is missing: then no more is read than needed. Elsewhere a guess, which may be short.
    """
    left = float(wanted)
    for part in parts:
        first = max(part.first_seq, after + 1)
        if first > part.last_seq:
            continue
        density = part.message_count / (part.last_seq - part.first_seq + 1)
        held = (part.last_seq - first + 1) * density
        if held >= left:
            return min(border, first - 1 + math.ceil(left / density))
        left -= held
    return border


def parts_between(parts: Sequence[Part], after: int, last: int) -> list[Part]:
    """Return the parts that may have numbers greater than ``after`` and at most ``last``."""
    return [part for part in parts if part.last_seq > after and part.first_seq <= last]


def select(columns: str, stretch: Stretch, parts: Sequence[Part], after: int, last: int, limit: int) -> str:
    """Write the query for the first ``limit`` messages of ``parts``, greater than ``after`` and at most ``last``.

    The partitions are literals, so that no file of another one is opened.
    """
    classes: dict[int, list[int]] = {}
    for part in parts:
        classes.setdefault(part.lifetime, []).append(part.span)
    where = " OR ".join(
        f"lifetime = {lifetime:d} AND span IN ({', '.join(map(str, spans))})" for lifetime, spans in classes.items()
    )
    hidden = ", ".join(f"X'{sender.hex()}'" for sender in stretch.hidden_senders)
    return (
        f"SELECT {columns} FROM archive WHERE ({where}) AND group_key = {stretch.group_key:d}"
        f" AND sequence_num > {after:d} AND sequence_num <= {last:d} AND created_at >= {stretch.cutoff:d}"
        f"{f' AND (is_commit OR sender_id NOT IN ({hidden}))' if hidden else ''}"
        f" ORDER BY sequence_num LIMIT {limit:d}"
    )
