"""Telling what a transaction changes: heard once it is durable, and only then.

Store functions announce, in whatever process they run. ``database.write_transaction`` hands on what was announced: the
server's writer to the streams of this process, right after the commit; any other process, such as an operator's
command or cleanup, through the outbox, from which the server takes it. What is to be told to caches goes the same way.
"""

import sqlite3
from collections.abc import Iterable
from typing import Any

from conclave.events import Announcement, Ending, Event
from conclave.store import outbox
from conclave.store.connection import of_store


def announce(connection: sqlite3.Connection, recipients: Iterable[bytes], name: str, **values: Any) -> None:
    """Have the event ``name`` go to the users ``recipients`` after the commit."""
    of_store(connection).announced.append(Announcement(frozenset(recipients), Event(name, values)))


def end_streams(connection: sqlite3.Connection, user_id: bytes, session_id: int) -> None:
    """Have the streams of a user's session end after the commit."""
    of_store(connection).announced.append(Ending(user_id, session_id))


def forward(connection: sqlite3.Connection) -> None:
    """Announce what other processes have left in the outbox."""
    of_store(connection).announced.extend(outbox.take(connection))


def members_of(connection: sqlite3.Connection, group_key: int) -> set[bytes]:
    """Return the ids of a group's members."""
    return {row[0] for row in connection.execute("SELECT user_id FROM members WHERE group_key = ?", (group_key,))}
