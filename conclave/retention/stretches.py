"""Locates a group's messages in the archive. ``conclave/archive/reader.py`` reads the archive itself.

A group's border is its ``archived_seq``: messages up to it are served from the archive, later ones from the hot store.
A message that is being moved is in both, but only one serves it.
"""

import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conclave.retention.visibility import Visibility

if TYPE_CHECKING:
    from conclave.store.resources.groups import GroupRow


@dataclass(frozen=True)
class Part:
    """The messages of one group in one partition of the archive. ``oldest`` and ``newest``: Unix seconds."""

    lifetime: int
    span: int
    first_seq: int
    last_seq: int
    oldest: int
    newest: int
    message_count: int
    body_bytes: int


@dataclass(frozen=True)
class Stretch:
    """Consecutive messages of one group that are served from the archive, and their visibility.

    ``after`` (exclusive) and ``border`` (inclusive): the numbers. ``deleted_senders``: the deleted accounts with
    archived messages in the group. ``parts``: the parts with the messages, by first number. ``version``: the first
    version of the table that has the messages. ``relaid``: see the function of that name. ``turn``: the turn of the run
    that last changed the table. ``taken_back``: numbers that are redacted for everyone, and omitted unless
    ``include_redacted``.
    """

    group_key: int
    after: int
    border: int
    visibility: Visibility
    deleted_senders: Sequence[bytes]
    parts: Sequence[Part]
    version: int
    relaid: int
    turn: int
    group_id: bytes
    taken_back: Collection[int] = ()
    include_redacted: bool = False


def must_exist(connection: sqlite3.Connection) -> bool:
    """Return whether the archive's table must exist."""
    row = connection.execute(
        "SELECT 1 FROM archive_state WHERE version > 0 OR EXISTS (SELECT 1 FROM archive_parts)"
    ).fetchone()
    return row is not None


def relaid(connection: sqlite3.Connection) -> int:
    """Return how many times messages were moved back from the archive into the hot store.

    The count rises before the move. If a stretch has a smaller count, its messages may have moved before the read.
    """
    return int(connection.execute("SELECT relaid FROM archive_state").fetchone()[0])


def stretch(
    connection: sqlite3.Connection,
    group: "GroupRow",
    after: int,
    visibility: Visibility,
    *,
    include_redacted: bool = False,
) -> Stretch | None:
    """Return the group's archived messages with numbers greater than ``after``; None if none is visible.

    ``include_redacted``: include messages that were taken back.
    """
    after = max(after, visibility.gone_below)
    if after >= group.archived_seq:
        return None
    rows = connection.execute(
        "SELECT lifetime, span, first_seq, last_seq, oldest, newest, message_count, body_bytes FROM archive_parts"
        " WHERE group_key = ? AND last_seq > ? AND (newest >= ? OR last_seq > ?) ORDER BY first_seq",
        (group.group_key, after, visibility.hidden_before, visibility.commits_above),
    ).fetchall()
    if not rows:
        return None
    deleted_senders = connection.execute(
        "SELECT user_id FROM user_tombstones WHERE EXISTS"
        " (SELECT 1 FROM archive_senders WHERE sender_id = user_id AND group_key = ?)",
        (group.group_key,),
    ).fetchall()
    taken_back = (
        connection.execute(
            "SELECT sequence_num FROM taken_back WHERE group_key = ? AND NOT erased AND sequence_num > ?"
            " AND sequence_num <= ?",
            (group.group_key, after, group.archived_seq),
        ).fetchall()
        if group.taken_back_count
        else ()
    )
    version, relaid, turn = connection.execute("SELECT version, relaid, turn FROM archive_state").fetchone()
    return Stretch(
        group.group_key,
        after,
        group.archived_seq,
        visibility,
        [row[0] for row in deleted_senders],
        [Part(**row) for row in rows],
        version,
        relaid,
        turn,
        group.group_id,
        frozenset(row[0] for row in taken_back),
        include_redacted,
    )
