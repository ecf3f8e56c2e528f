"""Decides how far a page looks in the archive, and writes the query for it. Pure."""

import math
from collections.abc import Sequence

from conclave.archive.layout import in_partitions
from conclave.retention.hidden import Sought
from conclave.retention.stretches import Part, Stretch

COLUMNS = "sequence_num, sender_id, mls_message, created_at"
"""The first columns that a query returns, in the order of StoredMessage. Its ``is_kept`` comes after them.

The last ones are ``is_commit`` and ``checksum``: with them it is checked that a message is as it was archived.
"""


def reach(parts: Sequence[Part], after: int, border: int, wanted: int, room: int) -> int:
    """Return up to which number to look for ``wanted`` messages, or ``room`` bytes of bodies, after ``after``.

    It is at most ``border``. It is exact if no number is missing and all bodies have the same size: then no more is
    read than needed. Otherwise it is a guess, which may be too low.
    """
    messages, size = float(wanted), float(room)
    for part in parts:
        first = max(part.first_seq, after + 1)
        if first > part.last_seq or not part.message_count:  # a run that ended early has erased all of it
            continue
        density = part.message_count / (part.last_seq - part.first_seq + 1)
        mean_bytes = max(1.0, part.body_bytes / part.message_count)
        needed = max(1.0, min(messages, size / mean_bytes))
        held = (part.last_seq - first + 1) * density
        if held >= needed:
            return min(border, first - 1 + math.ceil(needed / density))
        messages -= held
        size -= held * mean_bytes
    return border


def parts_between(parts: Sequence[Part], after: int, last: int) -> list[Part]:
    """Return the parts that may have messages with numbers greater than ``after`` and at most ``last``."""
    return [part for part in parts if part.last_seq > after and part.first_seq <= last]


def most_between(parts: Sequence[Part], after: int, last: int) -> int:
    """Return how many numbers greater than ``after`` and at most ``last`` there are in ``parts``, none of them missing.

    ``parts``: ordered by first number; they may overlap.
    """
    count, seen = 0, after
    for part in parts:
        first, end = max(part.first_seq, seen + 1), min(part.last_seq, last)
        if first <= end:
            count, seen = count + end - first + 1, end
    return count


def select(stretch: Stretch, parts: Sequence[Part], after: int, last: int, first_only: int | None = None) -> str:
    """Write the query for the messages of ``parts`` with numbers greater than ``after`` and at most ``last``.

    ``first_only``: query only this many, the first ones, in order; None: all, in any order. The query names the
    partitions as literals, so that no file of another partition is opened.
    """
    return (
        f"SELECT {COLUMNS}, {stretch.sight.kept} AS is_kept, is_commit, checksum FROM archive"
        f" WHERE {_where(stretch, parts, after, last)}"
        f"{'' if first_only is None else f' ORDER BY sequence_num LIMIT {first_only:d}'}"
    )


def numbers(stretch: Stretch, parts: Sequence[Part], after: int, last: int) -> str:
    """Write the query for the numbers of the messages that ``select`` finds, in any order."""
    return f"SELECT sequence_num FROM archive WHERE {_where(stretch, parts, after, last)}"


def of_sender(stretch: Stretch, sender_id: bytes) -> str:
    """Write the query for the messages of ``stretch`` that one user has sent, in any order."""
    where = _where(stretch, stretch.parts, stretch.after, stretch.border)
    return (
        "SELECT sequence_num, created_at, is_commit, mls_message, checksum FROM archive"
        f" WHERE {where} AND sender_id = X'{sender_id.hex()}'"
    )


def of_sender_anywhere(sender_id: bytes) -> str:
    """Write the query for all messages that one user has sent, in any order, hidden ones too."""
    return (
        "SELECT group_key, sequence_num, created_at, is_commit, mls_message, checksum FROM archive"
        f" WHERE sender_id = X'{sender_id.hex()}'"
    )


def facts(stretch: Stretch) -> str:
    """Write the query for what is known of the messages of ``stretch`` but their bodies, in any order."""
    where = _where(stretch, stretch.parts, stretch.after, stretch.border)
    return f"SELECT created_at, sender_id, is_commit FROM archive WHERE {where}"


def tally(sought: Sought) -> str:
    """Write the query for the sums of ``sought``."""
    return f"SELECT {sought.sums.sql} FROM archive WHERE {hidden(sought)}"


def hidden(sought: Sought) -> str:
    """Write the condition for the messages of ``sought``."""
    stretch, horizon = sought.stretch, sought.horizon
    aged = f"created_at < {horizon.before:d} AND NOT {horizon.is_kept(str(horizon.commits_above))}"
    return (
        f"{_where(stretch, stretch.parts, stretch.after, stretch.border)}"
        f" AND (sequence_num <= {horizon.gone:d} OR ({aged}))"
    )


def _where(stretch: Stretch, parts: Sequence[Part], after: int, last: int) -> str:
    """Write the condition for the messages that may be seen."""
    deleted = ", ".join(f"X'{sender.hex()}'" for sender in stretch.deleted_senders)
    return (
        f"{in_partitions((part.lifetime, part.span) for part in parts)} AND group_key = {stretch.group_key:d}"
        f" AND sequence_num <= {last:d} AND {stretch.sight.condition(after, deleted)}"
        f"{_without_taken_back(stretch, after, last)}"
    )


def _without_taken_back(stretch: Stretch, after: int, last: int) -> str:
    """Write what leaves out the messages that were taken back, of those that are looked at."""
    left_out = () if stretch.include_redacted else sorted(n for n in stretch.taken_back if after < n <= last)
    return f" AND sequence_num NOT IN ({', '.join(map(str, left_out))})" if left_out else ""
