"""Accepts the wall clock as correct, and replaces future times, written by a fast clock, with the present.

Hidden messages stay hidden, and no other messages become hidden.
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
"""Independent times, by table: future ones are set to the present."""

SPECIAL = {
    "messages": ("created_at",),
    "groups": ("expired_before",),
    "sessions": ("created_at", "last_used_at", "expires_at"),
    "timers": ("redact_at",),
    "server_state": ("last_alive", "acted_until", "clock_wall", "too_old_before"),
}
"""Times with their own rules, by table. The rules are in this module and in ``state``."""

EVIDENCE = {
    "audit": ("at",),
    "receipts": ("at", "newest"),
    "erasures": ("newest",),
    "taken_back": ("taken_at",),
    "archive_parts": ("span", "oldest", "newest"),
    "archive_dead": ("span",),
    "archive_returned": ("span",),
}
"""Times that are not changed, by table, since they are evidence.

The hash of a receipt covers its times. These times neither hide nor erase anything; log entries with future times are
kept longer accordingly. Archived messages with future times are moved back to the hot store first.
"""

_MESSAGES = """
UPDATE messages SET created_at = :now - (created_at < :mark)
WHERE group_key = :group_key AND created_at >= :now AND (created_at > :now OR created_at < :mark)
"""
"""Messages that a mark hides get the second before the present, and the mark is set to the present."""

_SESSIONS = """
UPDATE sessions SET created_at = min(created_at, :now), last_used_at = min(last_used_at, :now),
    expires_at = min(expires_at, :now + :ttl)
WHERE created_at > :now OR last_used_at > :now OR expires_at > :now + :ttl
"""

_LATEST_END = ":now + iif(told, 0, seconds)"
"""The latest end of a timer that has started by now. If the reader was notified of the end, the timer has ended."""


def accept(connection: sqlite3.Connection, clock: Clock, ttl: int) -> None:
    """Accept the clock, with an entry in the audit log. Call it in a transaction; it may be repeated.

    ``ttl``: a session expires this many seconds after its last use. The archive must not serve messages with future
    times.
    """
    reading = clock.read()
    details = {
        "fault": state.clock_state(connection).fault,
        "brought_back": _replace_future_times(connection, {"now": reading.wall, "ttl": ttl}),
    }
    state.accept_clock(connection, reading)
    audit.note(connection, reading.wall, operator_identity.current(), audit.AuditAction.CLOCK_ACCEPTED, details=details)
    reach("clock.brought_back")


def _replace_future_times(connection: sqlite3.Connection, parameters: dict[str, int]) -> dict[str, int]:
    """Set future times to the present; return the number of changed rows by table."""
    changed_rows: Counter[str] = Counter()
    keys = "SELECT group_key, expired_before FROM groups UNION ALL SELECT group_key, 0 FROM tombstones"
    for group_key, mark in connection.execute(keys).fetchall():
        values = {"group_key": group_key, "mark": mark, **parameters}
        changed_rows["messages"] += connection.execute(_MESSAGES, values).rowcount
    marks = "UPDATE groups SET expired_before = :now WHERE expired_before > :now"
    changed_rows["marks"] = connection.execute(marks, parameters).rowcount
    for table, columns in PLAIN.items():
        to_present = ", ".join(f"{column} = min({column}, :now)" for column in columns)
        is_future = " OR ".join(f"{column} > :now" for column in columns)
        changed_rows[table] = connection.execute(
            f"UPDATE {table} SET {to_present} WHERE {is_future}", parameters
        ).rowcount
    changed_rows["sessions"] = connection.execute(_SESSIONS, parameters).rowcount
    timers = f"UPDATE timers SET redact_at = {_LATEST_END} WHERE redact_at > {_LATEST_END}"
    changed_rows["timers"] = connection.execute(timers, parameters).rowcount
    connection.execute("INSERT INTO touches (group_key, session_id) VALUES (NULL, NULL)")  # invalidates all caches
    return dict(+changed_rows)
