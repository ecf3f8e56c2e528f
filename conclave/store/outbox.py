"""What another process did that somebody must hear of: cleanup and operators write it, the server hands it on."""

import json
import sqlite3
from collections.abc import Iterable

from conclave.events import Announcement, Ending, Event, News

_ENDING = ""
"""In place of an event's name: the streams of a user end."""


def add(connection: sqlite3.Connection, recipient_id: bytes, name: str, **values: bytes | str) -> None:
    """Have the server tell a user of the event ``name`` once the transaction is durable."""
    fields = {field: value.hex() if isinstance(value, bytes) else value for field, value in values.items()}
    connection.execute(
        "INSERT INTO outbox (recipient_id, event, event_ids) VALUES (?, ?, ?)", (recipient_id, name, json.dumps(fields))
    )


def add_all(connection: sqlite3.Connection, news: Iterable[News]) -> None:
    """Have the server tell what this transaction announced, were it the server's own."""
    for each in news:
        if isinstance(each, Ending):
            add(connection, each.user_id, _ENDING)
            continue
        for recipient_id in sorted(each.recipients):
            add(connection, recipient_id, each.event.name, **each.event.values)


def is_empty(connection: sqlite3.Connection) -> bool:
    """Tell whether nothing waits."""
    return connection.execute("SELECT 1 FROM outbox LIMIT 1").fetchone() is None


def take(connection: sqlite3.Connection) -> list[News]:
    """Remove and return what waits, in the order in which it was written."""
    rows = connection.execute("SELECT * FROM outbox ORDER BY outbox_id").fetchall()
    connection.executemany("DELETE FROM outbox WHERE outbox_id = ?", [(row["outbox_id"],) for row in rows])
    return [_news(row) for row in rows]


def _news(row: sqlite3.Row) -> News:
    if row["event"] == _ENDING:
        return Ending(row["recipient_id"])
    fields = json.loads(row["event_ids"]).items()
    values = {field: bytes.fromhex(value) if field.endswith("_id") else value for field, value in fields}
    return Announcement(frozenset({row["recipient_id"]}), Event(row["event"], values))
