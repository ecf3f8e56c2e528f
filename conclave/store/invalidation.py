"""Invalidation: the table ``touches`` says what in the store is no longer as a cache may have it.

Triggers of the schema note each change of a group's marks, members or existence, of what its messages show, and of a
session's end. So every change is noted, in the transaction that makes it, whichever process or program it is. Sends,
fetches and extensions of sessions touch nothing: a server follows its own by itself.

Its rows, touches, are numbered. A cache keeps the number up to which it is right, and reads later rows before it
uses what it has.
"""

import sqlite3
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Invalidated:
    """What is no longer valid, up to the number ``touch``, inclusive. ``everything``: forget all that is remembered."""

    touch: int
    groups: Collection[int] = ()
    sessions: Collection[int] = ()
    everything: bool = False

    def reaches_group(self, group_key: int) -> bool:
        """Tell whether what is known of a group may be wrong."""
        return self.everything or group_key in self.groups

    def reaches_session(self, session_id: int) -> bool:
        """Tell whether what is known of a session may be wrong."""
        return self.everything or session_id in self.sessions


AFTER = "SELECT touch, group_key, session_id FROM touches WHERE touch > ? ORDER BY touch"
"""The query for the touches after a number: see ``collect``."""


def after(connection: sqlite3.Connection, touch: int) -> Invalidated | None:
    """Return what was invalidated after the number ``touch``; None for nothing."""
    return collect(touch, connection.execute(AFTER, (touch,)).fetchall())


def collect(touch: int, rows: Sequence[tuple[int, int | None, int | None]]) -> Invalidated | None:
    """Return what ``rows``, the answer to AFTER, say.

    The store keeps the last 4,096 touches. If it lacks some of those after ``touch``, everything counts as touched.
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
    """Return the number of the touch as of which ``fn`` has read, and its result. Call it in a read transaction."""
    return last_invalidation(connection), fn(connection, *args, **kwargs)


def last_invalidation(connection: sqlite3.Connection) -> int:
    """Return the number of the last touch; 0 for none."""
    return int(connection.execute("SELECT ifnull(max(touch), 0) FROM touches").fetchone()[0])


def invalidate_group(connection: sqlite3.Connection, group_key: int) -> None:
    """Note that messages of a group are erased, which no trigger does: it would cost each of millions of rows."""
    connection.execute("INSERT INTO touches (group_key) VALUES (?)", (group_key,))
