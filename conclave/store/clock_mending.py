"""Brings back stored times that a fast clock wrote and that lie in the future of the right clock.

What is hidden stays hidden, and nothing else becomes hidden. The caller runs each function in a short transaction.
All may be repeated: they bring back what is still ahead.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial

from conclave.store.engine.sqlite import Step

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
    "holds": ("added_at",),
    "registration_tokens": ("created_at",),
    "send_ids": ("sent_at",),
    "key_copies": ("made_at",),
    "archive_unreadable": ("since",),
}
"""Times that depend on nothing else, by table: one that lies ahead becomes the present."""

SPECIAL = {
    "messages": ("created_at",),
    "groups": ("expired_before",),
    "sessions": ("created_at", "last_used_at", "expires_at"),
    "archive_parts": ("span", "oldest", "newest"),
    "archive_unreadable": ("span", "oldest_left"),
    "timers": ("redact_at",),
    "server_state": ("last_alive", "acted_until", "clock_wall", "too_old_before"),
}
"""Times that have rules of their own, by table: the rules are here, in ``state`` and in the archive."""

EVIDENCE = {
    "audit": ("at",),
    "receipts": ("at", "newest"),
    "erasures": ("newest",),
    "archive_erasures": ("span", "newest"),
    "taken_back": ("taken_at",),
}
"""Times that stay as they are, by table: what was noted, by which clock, is what happened.

The hash of each receipt has its times in it, so bringing them back would break the chain. Erasures become receipts.
Nothing is hidden or erased by these times. A log that is ahead is kept for that much longer.
"""

CHUNK = 256
"""A step changes at most 256 messages."""

WINDOW_ROWS = 1024
"""A step looks at no more than 1024 rows of a table that has no index to find the rows ahead."""

Wall = Callable[[], int]
"""Returns the wall clock's time, Unix seconds."""

_LATEST_END = ":now + iif(told, 0, seconds)"
"""When a timer ends at the latest that has begun by now. One whose reader was told of its end stays at its end."""

_SESSIONS_AHEAD = "created_at > :now OR last_used_at > :now OR expires_at > :now + :ttl"


def marked_ahead(connection: sqlite3.Connection, now: int) -> dict[int, int]:
    """Return the groups whose mark ``expired_before`` lies ahead of ``now``: group key to mark.

    Such a mark hides messages that were stored with future times.
    """
    rows = connection.execute("SELECT group_key, expired_before FROM groups WHERE expired_before > ?", (now,))
    return {row[0]: row[1] for row in rows}


def hide(
    connection: sqlite3.Connection, group_keys: Collection[int], now: int, brought_back: Counter[str]
) -> Iterator[Step]:
    """Bring the hidden messages of these groups back to the second before ``now``.

    ``group_keys``: those of ``marked_ahead``. Their marks follow later, by ``lower_marks``.
    """
    for group_key in group_keys:
        yield partial(_hide_some, connection, group_key, now, brought_back)


def lower_marks(
    connection: sqlite3.Connection, group_keys: Collection[int], now: int, brought_back: Counter[str]
) -> Iterator[Step]:
    """Bring the marks of these groups back to ``now``.

    Call it after ``hide``: then no hidden message is stored at ``now`` or later. New messages do not change that, since
    they are stored at the mark or after it.
    """
    for group_key in group_keys:
        yield partial(_lower_mark, connection, group_key, now, brought_back)


def bring_back(connection: sqlite3.Connection, wall: Wall, ttl: int, brought_back: Counter[str]) -> Iterator[Step]:
    """Bring back everything else; ``ttl``: how many seconds a session lives after its last use."""
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
    yield from _windows(
        *(connection, "timers", f"redact_at = {_LATEST_END}", f"redact_at > {_LATEST_END}"),
        *(wall, ttl, brought_back),
    )


def is_ahead(connection: sqlite3.Connection, now: int, ttl: int) -> bool:
    """Tell whether any stored time lies ahead of ``now``, in the database or, by its index, in the archive."""
    conditions = [(table, _ahead(columns)) for table, columns in PLAIN.items()]
    conditions += [
        ("groups", "expired_before > :now"),
        ("groups", _HAS_LATER),
        ("tombstones", _HAS_LATER.replace("groups", "tombstones")),
        ("sessions", _SESSIONS_AHEAD),
        ("timers", f"redact_at > {_LATEST_END}"),
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
    """Bring some of a group's messages back; those that are shown are not moved below the group's mark."""
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
    """Change the rows of a table for which ``condition`` holds; each step looks at WINDOW_ROWS rows."""
    last = connection.execute(f"SELECT ifnull(max(rowid), 0) FROM {table}").fetchone()[0]
    first = 0

    def change() -> bool:
        nonlocal first
        ends = connection.execute(
            f"SELECT max(rowid) FROM (SELECT rowid FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT ?)",
            (first, WINDOW_ROWS),
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
