"""Telling readers that a self-destructing message has come to its end for them."""

import sqlite3

from conclave.actions.context import Context
from conclave.store import sessions, state, timers
from conclave.store.timers import Redaction, heard

__all__ = ["are_due", "begin_stream", "heard", "tell"]


def are_due(connection: sqlite3.Connection, context: Context) -> bool:
    """Tell whether ``tell`` has anything to do. While the clock is wrong it has not."""
    return timers.are_due(connection, context.now()) and not state.standing(connection).fault


def tell(connection: sqlite3.Connection, context: Context) -> tuple[int, list[Redaction]]:
    """Tell readers of timers that have ended, of some at a time; return how many ended, and what was told to whom.

    A wrong clock ends no timer for good, not even before the guard has noticed: reads go by it, and what it hides comes
    back once the clock is accepted. What readers were told would not. Raises UntrustedClockError.
    """
    state.require_clock(connection, context.clock.read())
    return timers.tell(connection, context.now())


def begin_stream(connection: sqlite3.Connection, session_id: int, user_id: bytes) -> list[Redaction] | None:
    """Return what a user who begins to listen has missed; None if the session is over."""
    return timers.missed(connection, user_id) if sessions.exists(connection, session_id) else None
