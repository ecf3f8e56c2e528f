"""What the hot store knows of the archive, for readers: which messages of a group lie where in it.

The archive itself is a table elsewhere (``conclave/archive/reader.py``). Up to a group's ``archived_seq``, its border,
messages are served from there, and above it from here: a message is in both while it moves, but counts in one.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from conclave.store.groups import Group
from conclave.store.visibility import Sight


@dataclass(frozen=True)
class Part:
    """What one partition of the archive holds of one group."""

    lifetime: int
    span: int
    first_seq: int
    last_seq: int
    message_count: int
    body_bytes: int


@dataclass(frozen=True)
class Stretch:
    """A run of one group's numbers that is served from the archive, and what of it may be seen.

    ``after`` and ``border``: the numbers, exclusive and inclusive. ``deleted_senders``: those who sent any of it and
    whose accounts were deleted. ``parts``: where it lies, by first number.
    ``version``: of the table; this one or a later one has it. ``relaid``: see the function of that name. ``turn``: of
    the run that changed the table last.
    """

    group_key: int
    after: int
    border: int
    sight: Sight
    deleted_senders: Sequence[bytes]
    parts: Sequence[Part]
    version: int
    relaid: int
    turn: int


def is_to_be_there(connection: sqlite3.Connection) -> bool:
    """Tell whether there has to be a table."""
    row = connection.execute(
        "SELECT 1 FROM archive_state WHERE version > 0 OR EXISTS (SELECT 1 FROM archive_parts)"
    ).fetchone()
    return row is not None


def relaid(connection: sqlite3.Connection) -> int:
    """Return how often messages went to other parts; it rises before they go.

    A stretch of before may have been looked for where it no longer was.
    """
    return int(connection.execute("SELECT relaid FROM archive_state").fetchone()[0])


def stretch(connection: sqlite3.Connection, group: Group, after: int, sight: Sight) -> Stretch | None:
    """Return what of the group is archived beyond ``after``; None if nothing that may be seen."""
    after = max(after, sight.gone_below)
    if after >= group.archived_seq:
        return None
    rows = connection.execute(
        "SELECT lifetime, span, first_seq, last_seq, message_count, body_bytes FROM archive_parts"
        " WHERE group_key = ? AND last_seq > ? AND newest >= ? ORDER BY first_seq",
        (group.group_key, after, sight.hidden_before),
    ).fetchall()
    if not rows:
        return None
    deleted = connection.execute(
        "SELECT user_id FROM user_tombstones WHERE EXISTS"
        " (SELECT 1 FROM archive_senders WHERE sender_id = user_id AND group_key = ?)",
        (group.group_key,),
    ).fetchall()
    version, relaid, turn = connection.execute("SELECT version, relaid, turn FROM archive_state").fetchone()
    return Stretch(
        group.group_key,
        after,
        group.archived_seq,
        sight,
        [row[0] for row in deleted],
        [Part(**row) for row in rows],
        version,
        relaid,
        turn,
    )
