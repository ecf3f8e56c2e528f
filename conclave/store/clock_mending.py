"""Brings stored times back that lie ahead of a clock which was set right: what a fast clock stamped must not last.

What is hidden stays hidden, and nothing else becomes so. All functions want a transaction of the caller's, a short
one each, and may be repeated: whatever is still ahead is brought back then.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial

from conclave.store.database import Step

PLAIN = {
    "users": ("created_at",),
    "groups": ("created_at",),
    "members": ("joined_at",),
    "invites": ("created_at",),
    "bans": ("banned_at",),
    "tombstones": ("created_at",),
    "user_tombstones": ("created_at",),
    "cleanup_runs": ("started_at", "finished_at"),
    "archive_moves": ("fixed_at", "finished_at"),
}
"""Columns by table of which nothing depends on another: what lies ahead becomes the present."""

SPECIAL = {
    "messages": ("created_at",),
    "groups": ("expired_before",),
    "sessions": ("created_at", "last_used_at", "expires_at"),
    "archive_parts": ("span", "oldest", "newest"),
    "server_state": ("last_alive", "acted_until", "clock_wall"),
}
"""Columns by table that have rules of their own: here, in ``state``, and in the archive."""

CHUNK = 256
"""Messages that are changed between two looks at the clock."""

WINDOW = 1024
"""Rows that are looked at, where there is no index to find those ahead."""

Wall = Callable[[], int]

_SESSIONS_AHEAD = "created_at > :now OR last_used_at > :now OR expires_at > :now + :ttl"


def marked_ahead(connection: sqlite3.Connection, now: int) -> dict[int, int]:
    """Return the groups of which messages are hidden that were stored in a time to come: key to ``expired_before``."""
    rows = connection.execute("SELECT group_key, expired_before FROM groups WHERE expired_before > ?", (now,))
    return {row[0]: row[1] for row in rows}


def hide(
    connection: sqlite3.Connection, group_keys: Collection[int], now: int, brought_back: Counter[str]
) -> Iterator[Step]:
    """Bring back what is hidden in the groups of ``marked_ahead``, to just before ``now``: their marks follow."""
    for group_key in group_keys:
        yield partial(_hide_some, connection, group_key, now, brought_back)


def lower_marks(
    connection: sqlite3.Connection, group_keys: Collection[int], now: int, brought_back: Counter[str]
) -> Iterator[Step]:
    """Bring the marks of those groups back to ``now``, once nothing that they hide is stored at that second or later.

    Nothing else comes to lie there meanwhile: what is sent is stored at the mark, or after it.
    """
    for group_key in group_keys:
        yield partial(_lower_mark, connection, group_key, now, brought_back)


def bring_back(connection: sqlite3.Connection, wall: Wall, ttl: int, brought_back: Counter[str]) -> Iterator[Step]:
    """Bring back everything else; ``ttl``: the seconds that a session lives from its last use."""
    keys = connection.execute("SELECT group_key FROM groups UNION SELECT group_key FROM tombstones").fetchall()
    for (group_key,) in keys:
        yield partial(_bring_messages_back, connection, group_key, wall, brought_back)
    for table, columns in PLAIN.items():
        changes = ", ".join(f"{column} = min({column}, :now)" for column in columns)
        yield from _windows(connection, table, changes, _ahead(columns), wall, ttl, brought_back)
    changes = (
        "created_at = min(created_at, :now), last_used_at = min(last_used_at, :now),"
        " expires_at = min(expires_at, :now + :ttl)"
    )
    yield from _windows(connection, "sessions", changes, _SESSIONS_AHEAD, wall, ttl, brought_back)


def is_ahead(connection: sqlite3.Connection, now: int, ttl: int) -> bool:
    """Tell whether anything stored lies ahead of ``now``, here or by the index in the archive."""
    conditions = [(table, _ahead(columns)) for table, columns in PLAIN.items()]
    conditions += [
        ("groups", "expired_before > :now"),
        ("groups", _HAS_LATER),
        ("tombstones", _HAS_LATER.replace("groups", "tombstones")),
        ("sessions", _SESSIONS_AHEAD),
        ("archive_parts", "newest > :now"),
    ]
    return any(
        connection.execute(
            f"SELECT EXISTS (SELECT 1 FROM {table} WHERE {condition})", {"now": now, "ttl": ttl}
        ).fetchone()[0]
        for table, condition in conditions
    )


_HAS_LATER = (
    "EXISTS (SELECT 1 FROM messages WHERE messages.group_key = groups.group_key AND messages.created_at > :now)"
)


def _ahead(columns: tuple[str, ...]) -> str:
    return " OR ".join(f"{column} > :now" for column in columns)


def _hide_some(connection: sqlite3.Connection, group_key: int, now: int, brought_back: Counter[str]) -> bool:
    changed = connection.execute(
        "UPDATE messages SET created_at = ?2 - 1 WHERE message_id IN (SELECT message_id FROM messages"
        " WHERE group_key = ?1 AND created_at >= ?2 AND created_at <"
        " (SELECT expired_before FROM groups WHERE group_key = ?1) LIMIT ?3)",
        (group_key, now, CHUNK),
    ).rowcount
    brought_back["messages"] += changed
    return changed == CHUNK


def _lower_mark(connection: sqlite3.Connection, group_key: int, now: int, brought_back: Counter[str]) -> bool:
    brought_back["marks"] += connection.execute(
        "UPDATE groups SET expired_before = ?2 WHERE group_key = ?1 AND expired_before > ?2", (group_key, now)
    ).rowcount
    return False


def _bring_messages_back(
    connection: sqlite3.Connection, group_key: int, wall: Wall, brought_back: Counter[str]
) -> bool:
    """Bring some of a group's messages back: what is shown stays above the group's mark."""
    mark = connection.execute("SELECT expired_before FROM groups WHERE group_key = ?", (group_key,)).fetchone()
    present = max(wall(), mark[0] if mark else 0)
    changed = connection.execute(
        "UPDATE messages SET created_at = ?2 WHERE message_id IN"
        " (SELECT message_id FROM messages WHERE group_key = ?1 AND created_at > ?2 LIMIT ?3)",
        (group_key, present, CHUNK),
    ).rowcount
    brought_back["messages"] += changed
    return changed == CHUNK


def _windows(
    connection: sqlite3.Connection,
    table: str,
    changes: str,
    condition: str,
    wall: Wall,
    ttl: int,
    brought_back: Counter[str],
) -> Iterator[Step]:
    """Change the rows of a table for which ``condition`` holds, so many looked at in each step."""
    last = connection.execute(f"SELECT ifnull(max(rowid), 0) FROM {table}").fetchone()[0]
    first = 0

    def change() -> bool:
        nonlocal first
        ends = connection.execute(
            f"SELECT max(rowid) FROM (SELECT rowid FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT ?)",
            (first, WINDOW),
        ).fetchone()[0]
        if ends is None:
            return False
        brought_back[table] += connection.execute(
            f"UPDATE {table} SET {changes} WHERE rowid > :first AND rowid <= :ends AND ({condition})",
            {"first": first, "ends": ends, "now": wall(), "ttl": ttl},
        ).rowcount
        first = ends
        return bool(ends < last)

    yield change
