"""What cleanup did that somebody must hear of: the worker writes it, the server hands it on."""

import json
import sqlite3

from conclave.events import Announcement, Event


def add(connection: sqlite3.Connection, recipient_id: bytes, name: str, **ids: bytes) -> None:
    """Have the server tell a user of the event ``name``, whose fields are ids, once the transaction is durable."""
    values = json.dumps({field: value.hex() for field, value in ids.items()})
    connection.execute(
        "INSERT INTO outbox (recipient_id, event, event_ids) VALUES (?, ?, ?)", (recipient_id, name, values)
    )


def is_empty(connection: sqlite3.Connection) -> bool:
    """Tell whether nothing waits."""
    return connection.execute("SELECT 1 FROM outbox LIMIT 1").fetchone() is None


def take(connection: sqlite3.Connection) -> list[Announcement]:
    """Remove and return what waits, in the order in which it was written."""
    rows = connection.execute("SELECT * FROM outbox ORDER BY outbox_id").fetchall()
    connection.executemany("DELETE FROM outbox WHERE outbox_id = ?", [(row["outbox_id"],) for row in rows])
    return [
        Announcement(
            frozenset({row["recipient_id"]}),
            Event(row["event"], {field: bytes.fromhex(text) for field, text in json.loads(row["event_ids"]).items()}),
        )
        for row in rows
    ]
