"""News: events that a transaction announces, to be published after the commit. Other processes use the outbox."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from conclave.events import Announcement, Event, MessageStored, News, SessionEnded
from conclave.store import invalidation
from conclave.store.engine.connection import of_store

_SESSION_ENDED = ""
"""The event name of a row that ends the streams of a session."""

_UNBLOCKED = "unblocked"
"""The event name of a row by which an operator lifts the limits on wrong passwords for a username."""

_ID_BYTES = 16
"""A user id has 16 bytes. A row has the concatenated ids of all recipients, which may be many."""


def add_all(connection: sqlite3.Connection, news: Iterable[News]) -> None:
    """Put ``news`` into the outbox. The server publishes them."""
    for each in news:
        if isinstance(each, MessageStored):
            invalidation.invalidate_group(connection, each.group_key)  # the server reads the rest itself
            continue
        if isinstance(each, SessionEnded):
            _add(connection, each.user_id, _SESSION_ENDED, {"session": each.session_id})
            continue
        recipients = each.recipients - {each.excluded}
        if recipients:
            _add(connection, b"".join(sorted(recipients)), each.event.name, _fields(each.event.values))


def add_unblocked(connection: sqlite3.Connection, username: str) -> None:
    """Make the server reset the limits on wrong passwords for a username. Repeated calls leave one row."""
    fields = json.dumps({"username": username})
    connection.execute("DELETE FROM outbox WHERE event = ? AND event_fields = ?", (_UNBLOCKED, fields))
    _add(connection, b"", _UNBLOCKED, {"username": username})


def take_unblocked(connection: sqlite3.Connection) -> list[str]:
    """Remove the rows of ``add_unblocked``, and return the usernames."""
    rows = connection.execute("DELETE FROM outbox WHERE event = ? RETURNING event_fields", (_UNBLOCKED,)).fetchall()
    return [json.loads(row[0])["username"] for row in rows]


def is_empty(connection: sqlite3.Connection) -> bool:
    """Return whether the outbox is empty: no news, and no users to be unblocked."""
    return connection.execute("SELECT 1 FROM outbox LIMIT 1").fetchone() is None


def take(connection: sqlite3.Connection) -> list[News]:
    """Remove and return the news in the outbox, in the order in which they were written.

    Rows of ``add_unblocked`` stay: they are not for clients.
    """
    rows = connection.execute("SELECT * FROM outbox WHERE event != ? ORDER BY outbox_id", (_UNBLOCKED,)).fetchall()
    connection.executemany("DELETE FROM outbox WHERE outbox_id = ?", [(row["outbox_id"],) for row in rows])
    return [_news(row) for row in rows]


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value.hex() if isinstance(value, bytes) else value for field, value in values.items()}


def _add(connection: sqlite3.Connection, recipients: bytes, name: str, fields: Mapping[str, Any]) -> None:
    connection.execute(
        "INSERT INTO outbox (recipient_ids, event, event_fields) VALUES (?, ?, ?)",
        (recipients, name, json.dumps(fields)),
    )


def _news(row: sqlite3.Row) -> News:
    fields = json.loads(row["event_fields"])
    if row["event"] == _SESSION_ENDED:
        return SessionEnded(row["recipient_ids"], fields["session"])
    values = {field: bytes.fromhex(value) if field.endswith("_id") else value for field, value in fields.items()}
    ids = row["recipient_ids"]
    recipients = frozenset(ids[start : start + _ID_BYTES] for start in range(0, len(ids), _ID_BYTES))
    return Announcement(recipients, Event(row["event"], values))


def announce(
    connection: sqlite3.Connection, recipients: Iterable[bytes], name: str, *, excluded: bytes = b"", **values: Any
) -> None:
    """Send the event ``name`` to the users ``recipients``, but not to ``excluded``, after the commit."""
    of_store(connection).announced.append(Announcement(frozenset(recipients), Event(name, values), excluded))


def end_streams(connection: sqlite3.Connection, user_id: bytes, session_id: int) -> None:
    """End the streams of a user's session after the commit."""
    of_store(connection).announced.append(SessionEnded(user_id, session_id))


def announce_stored(connection: sqlite3.Connection, messages: Iterable[MessageStored]) -> None:
    """Notify the server's caches of messages after the commit."""
    of_store(connection).announced.extend(messages)


def forward(connection: sqlite3.Connection) -> list[str]:
    """Announce the news in the outbox. Return the usernames whose logins are to be unblocked."""
    usernames = take_unblocked(connection)
    of_store(connection).announced.extend(take(connection))
    return usernames


def members_of(connection: sqlite3.Connection, group_key: int) -> set[bytes]:
    """Return the ids of a group's members."""
    return {row[0] for row in connection.execute("SELECT user_id FROM members WHERE group_key = ?", (group_key,))}
