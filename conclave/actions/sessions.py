"""A user's sessions: listing and ending them. With a session its streams end."""

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
    """End one of the user's sessions. Raises NotFoundError, also for another user's session."""
    session_id = sessions.find(connection, user_id, public_id)
    if session_id is None:
        raise NotFoundError("no such session")
    end(connection, user_id, session_id)


def end_all(connection: sqlite3.Connection, user_id: bytes) -> None:
    """End every session of a user.

    The news name each session. They may come late, by the outbox; a session that began meanwhile goes on.
    """
    for session_id in sessions.remove_all(connection, user_id):
        end_streams(connection, user_id, session_id)
