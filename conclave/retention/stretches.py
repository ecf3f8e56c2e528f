"""Tells readers where the archive has a group's messages.

``conclave/archive/reader.py`` reads the archive itself. A group's border is its ``archived_seq``: messages up to it are
served from the archive, those above it from the hot store. While a message moves it is in both, but only one serves it.
"""

import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conclave.retention.visibility import Sight

if TYPE_CHECKING:
    from conclave.store.resources.groups import GroupRow


@dataclass(frozen=True)
class Part:
    """What one partition of the archive holds of one group. ``oldest`` and ``newest``: Unix seconds."""

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
    """Consecutive numbers of one group that are served from the archive, and what of them may be seen.

    ``after`` (exclusive) and ``border`` (inclusive): the numbers. ``deleted_senders``: the deleted accounts that
    have archived messages in the group. ``parts``: where the messages are, ordered by first number. ``version``: this
    version of the table, or a later one, has the messages. ``relaid``: see the function of that name. ``turn``: that of
    the run that changed the table last. ``taken_back``: numbers that everybody sees only redacted; they are left out
    unless ``include_redacted``. ``group_id``: as of Group.
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
    group_id: bytes
    taken_back: Collection[int] = ()
    include_redacted: bool = False


def is_to_be_there(connection: sqlite3.Connection) -> bool:
    """Tell whether the archive's table must exist."""
    row = connection.execute(
        "SELECT 1 FROM archive_state WHERE version > 0 OR EXISTS (SELECT 1 FROM archive_parts)"
    ).fetchone()
    return row is not None


def relaid(connection: sqlite3.Connection) -> int:
    """Return how often messages went back from the archive into the hot store.

    The count rises before they go. A stretch with an earlier count may have been read from where its messages no longer
    were.
    """
    return int(connection.execute("SELECT relaid FROM archive_state").fetchone()[0])


def stretch(
    connection: sqlite3.Connection, group: "GroupRow", after: int, sight: Sight, *, include_redacted: bool = False
) -> Stretch | None:
    """Return the group's archived messages with numbers greater than ``after``; None if none may be seen.

    ``include_redacted``: also those that were taken back.
    """
    after = max(after, sight.gone_below)
    if after >= group.archived_seq:
        return None
    rows = connection.execute(
        "SELECT lifetime, span, first_seq, last_seq, oldest, newest, message_count, body_bytes FROM archive_parts"
        " WHERE group_key = ? AND last_seq > ? AND (newest >= ? OR last_seq > ?) ORDER BY first_seq",
        (group.group_key, after, sight.hidden_before, sight.commits_above),
    ).fetchall()
    if not rows:
        return None
    deleted = connection.execute(
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
        sight,
        [row[0] for row in deleted],
        [Part(**row) for row in rows],
        version,
        relaid,
        turn,
        group.group_id,
        frozenset(row[0] for row in taken_back),
        include_redacted,
    )
