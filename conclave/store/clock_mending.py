"""Accepts the wall clock as right. What a fast clock has stamped with times to come counts as stamped now.

What is hidden stays hidden, and nothing else becomes hidden.
"""

import sqlite3
from collections import Counter

from conclave.clock import Clock
from conclave.failpoints import reach
from conclave.store.resources import audit, state
from conclave.system import operator_identity

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
    "archive_state": ("reclaimed_at",),
    "archive_dead": ("since",),
}
"""Times that depend on nothing else, by table: one that lies ahead becomes the present."""

SPECIAL = {
    "messages": ("created_at",),
    "groups": ("expired_before",),
    "sessions": ("created_at", "last_used_at", "expires_at"),
    "timers": ("redact_at",),
    "server_state": ("last_alive", "acted_until", "clock_wall", "too_old_before"),
}
"""Times that have rules of their own, by table: the rules are here and in ``state``."""

EVIDENCE = {
    "audit": ("at",),
    "receipts": ("at", "newest"),
    "erasures": ("newest",),
    "taken_back": ("taken_at",),
    "archive_parts": ("span", "oldest", "newest"),
    "archive_dead": ("span",),
    "archive_returned": ("span",),
}
"""Times that stay as they are, by table: what was noted, by which clock, is what happened.

The hash of each receipt has its times in it. Nothing is hidden or erased by these times; a log that is ahead is kept
for that much longer. What the archive has of times to come is taken back into the hot store before.
"""

_MESSAGES = """
UPDATE messages SET created_at = :now - (created_at < :mark)
WHERE group_key = :group_key AND created_at >= :now AND (created_at > :now OR created_at < :mark)
"""
"""What a mark hides goes to just before the present, to which the mark comes."""

_SESSIONS = """
UPDATE sessions SET created_at = min(created_at, :now), last_used_at = min(last_used_at, :now),
    expires_at = min(expires_at, :now + :ttl)
WHERE created_at > :now OR last_used_at > :now OR expires_at > :now + :ttl
"""

_LATEST_END = ":now + iif(told, 0, seconds)"
"""When a timer ends at the latest that has begun by now. One whose reader was told of its end stays at its end."""


def accept(connection: sqlite3.Connection, clock: Clock, ttl: int) -> None:
    """Count the clock as right, and note that in the audit log. Call it in a transaction; it may be repeated.

    ``ttl``: how many seconds a session lives after its last use. Nothing of the archive that is served may lie ahead.
    """
    reading = clock.read()
    details = {
        "fault": state.standing(connection).fault,
        "brought_back": _bring_back(connection, {"now": reading.wall, "ttl": ttl}),
    }
    state.accept_clock(connection, reading)
    audit.note(connection, reading.wall, operator_identity.current(), audit.AuditAction.CLOCK_ACCEPTED, details=details)
    reach("clock.brought_back")


def _bring_back(connection: sqlite3.Connection, at: dict[str, int]) -> dict[str, int]:
    """Return how many rows were changed, by table."""
    changed: Counter[str] = Counter()
    keys = "SELECT group_key, expired_before FROM groups UNION ALL SELECT group_key, 0 FROM tombstones"
    for group_key, mark in connection.execute(keys).fetchall():
        values = {"group_key": group_key, "mark": mark, **at}
        changed["messages"] += connection.execute(_MESSAGES, values).rowcount
    marks = "UPDATE groups SET expired_before = :now WHERE expired_before > :now"
    changed["marks"] = connection.execute(marks, at).rowcount
    for table, columns in PLAIN.items():
        to_present = ", ".join(f"{column} = min({column}, :now)" for column in columns)
        ahead = " OR ".join(f"{column} > :now" for column in columns)
        changed[table] = connection.execute(f"UPDATE {table} SET {to_present} WHERE {ahead}", at).rowcount
    changed["sessions"] = connection.execute(_SESSIONS, at).rowcount
    timers = f"UPDATE timers SET redact_at = {_LATEST_END} WHERE redact_at > {_LATEST_END}"
    changed["timers"] = connection.execute(timers, at).rowcount
    connection.execute("INSERT INTO touches (group_key, session_id) VALUES (NULL, NULL)")  # a server forgets all
    return dict(+changed)
