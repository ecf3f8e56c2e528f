"""Lists and ends a user's sessions. The streams of a session end with it."""

import sqlite3

from conclave.errors import NotFoundError
from conclave.store.engine.news import end_streams
from conclave.store.resources import sessions
from conclave.store.resources.sessions import of_user as list_own

__all__ = ["end", "end_all", "list_own", "revoke"]


def end(connection: sqlite3.Connection, user_id: bytes, session_id: int) -> None:
    """End a session of the user."""
    sessions.remove(connection, session_id)
    end_streams(connection, user_id, session_id)


def revoke(connection: sqlite3.Connection, user_id: bytes, public_id: bytes) -> None:
    """End one of the user's sessions. Raises NotFoundError, even for another user's session."""
    session_id = sessions.find(connection, user_id, public_id)
    if session_id is None:
        raise NotFoundError("no such session")
    end(connection, user_id, session_id)


def end_all(connection: sqlite3.Connection, user_id: bytes) -> None:
    """End all sessions of a user.

    Announces each session by id: an announcement may be delayed in the outbox, and must not end newer sessions.
    """
    for session_id in sessions.remove_all(connection, user_id):
        end_streams(connection, user_id, session_id)
