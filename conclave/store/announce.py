"""Telling users what a transaction changes: heard once it is durable, and only then."""

import math
import sqlite3
from collections.abc import Iterable
from typing import Any

from conclave.events import Announcement, Ending, Event, News


class AnnouncingConnection(sqlite3.Connection):
    """A connection that keeps what its transaction has to tell, and the bytes of bodies that it may still add."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Open as sqlite3.Connection does."""
        super().__init__(*args, **kwargs)
        self.announced: list[News] = []
        self.room = math.inf


def announce(connection: sqlite3.Connection, recipients: Iterable[bytes], name: str, **values: Any) -> None:
    """Have the event ``name`` go to the users ``recipients`` after the commit.

    Nobody listens to what a process without clients announces: cleanup and operators use the outbox instead.
    """
    if isinstance(connection, AnnouncingConnection):
        connection.announced.append(Announcement(frozenset(recipients), Event(name, values)))


def end_streams(connection: sqlite3.Connection, user_id: bytes, session_id: int) -> None:
    """Have the streams of a user's session end after the commit."""
    if isinstance(connection, AnnouncingConnection):
        connection.announced.append(Ending(user_id, session_id))


def members_of(connection: sqlite3.Connection, group_key: int) -> set[bytes]:
    """Return the ids of a group's members."""
    return {row[0] for row in connection.execute("SELECT user_id FROM members WHERE group_key = ?", (group_key,))}
