"""News: what a transaction announces. Others hear of it only after the commit.

Actions announce, in every process. ``sqlite.write_transaction`` hands the news on. The server's writer gives it to the
streams of its process right after the commit. Any other process, such as an operator's command or cleanup, puts it into
the outbox, and the server takes it from there. News for caches goes the same way.
"""

import sqlite3
from collections.abc import Iterable
from typing import Any

from conclave.events import Announcement, Ending, Event, Stored
from conclave.store.engine import outbox
from conclave.store.engine.connection import of_store


def announce(
    connection: sqlite3.Connection, recipients: Iterable[bytes], name: str, *, but_not: bytes = b"", **values: Any
) -> None:
    """Send the event ``name`` to the users ``recipients``, but not to ``but_not``, after the commit."""
    of_store(connection).announced.append(Announcement(frozenset(recipients), Event(name, values), but_not))


def end_streams(connection: sqlite3.Connection, user_id: bytes, session_id: int) -> None:
    """End the streams of a user's session after the commit."""
    of_store(connection).announced.append(Ending(user_id, session_id))


def announce_stored(connection: sqlite3.Connection, stored: Iterable[Stored]) -> None:
    """Have what the server remembers hear of messages after the commit."""
    of_store(connection).announced.extend(stored)


def forward(connection: sqlite3.Connection) -> list[str]:
    """Announce what other processes have left in the outbox. Return the usernames whose logins are to be unblocked."""
    unblocked = outbox.take_unblocked(connection)
    of_store(connection).announced.extend(outbox.take(connection))
    return unblocked


def members_of(connection: sqlite3.Connection, group_key: int) -> set[bytes]:
    """Return the ids of a group's members."""
    return {row[0] for row in connection.execute("SELECT user_id FROM members WHERE group_key = ?", (group_key,))}
