"""Cache invalidation by the table ``touches``.

Triggers of the schema add a row, a touch, for each change of a group's marks, members or existence, for each redaction,
and for the end of a session. So every change is recorded in its own transaction, in any process. Sends,
fetches and extensions of sessions are not recorded: the server updates its own caches.

Touches are numbered. A cache remembers the number up to which it is valid, and reads later touches before each use.
"""

import sqlite3
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Invalidated:
    """Invalid cache entries, up to the number ``touch``, inclusive. ``everything``: all entries are invalid."""

    touch: int
    groups: Collection[int] = ()
    sessions: Collection[int] = ()
    everything: bool = False

    def covers_group(self, group_key: int) -> bool:
        """Return whether cached data of a group may be invalid."""
        return self.everything or group_key in self.groups

    def covers_session(self, session_id: int) -> bool:
        """Return whether cached data of a session may be invalid."""
        return self.everything or session_id in self.sessions


QUERY_AFTER = "SELECT touch, group_key, session_id FROM touches WHERE touch > ? ORDER BY touch"
"""The query for the touches after a number, see ``collect``."""


def after(connection: sqlite3.Connection, touch: int) -> Invalidated | None:
    """Return the cache entries invalidated after the number ``touch``; None if there are none."""
    return collect(touch, connection.execute(QUERY_AFTER, (touch,)).fetchall())


def collect(touch: int, rows: Sequence[tuple[int, int | None, int | None]]) -> Invalidated | None:
    """Return the cache entries invalidated by ``rows``, the result of QUERY_AFTER.

    The store keeps the last 4,096 touches. If any after ``touch`` are missing, everything is invalid.
    """
    if not rows:
        return None
    groups = {group_key for _, group_key, _ in rows if group_key is not None}
    sessions = {session_id for *_, session_id in rows if session_id is not None}
    is_all = rows[0][0] != touch + 1 or any(
        group_key is None and session_id is None for _, group_key, session_id in rows
    )
    return Invalidated(rows[-1][0], groups, sessions, everything=is_all)


def with_invalidation(
    connection: sqlite3.Connection,
    fn: Callable[Concatenate[sqlite3.Connection, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> tuple[int, T]:
    """Return the number of the last touch before ``fn`` was run, and its result. Call it in a read transaction."""
    return last_invalidation(connection), fn(connection, *args, **kwargs)


def last_invalidation(connection: sqlite3.Connection) -> int:
    """Return the number of the last touch; 0 if there is none."""
    return int(connection.execute("SELECT ifnull(max(touch), 0) FROM touches").fetchone()[0])


def invalidate_group(connection: sqlite3.Connection, group_key: int) -> None:
    """Record that messages of a group are erased. A trigger would be too slow for millions of rows."""
    connection.execute("INSERT INTO touches (group_key) VALUES (?)", (group_key,))
