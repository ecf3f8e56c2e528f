"""What cleanup did that somebody must hear of: the worker writes it, the server hands it on."""

import sqlite3

from conclave.events import Event


def add(connection: sqlite3.Connection, recipient_id: bytes, event: Event) -> None:
    """Have the server tell a user, once the transaction is durable."""
    connection.execute(
        "INSERT INTO outbox (recipient_id, event, group_id, user_id) VALUES (?, ?, ?, ?)",
        (recipient_id, event.name, event.group_id, event.user_id),
    )


def is_empty(connection: sqlite3.Connection) -> bool:
    """Tell whether nothing waits."""
    return connection.execute("SELECT 1 FROM outbox LIMIT 1").fetchone() is None


def take(connection: sqlite3.Connection) -> list[tuple[bytes, Event]]:
    """Remove and return what waits, in the order in which it was written: recipient and event."""
    rows = connection.execute("SELECT * FROM outbox ORDER BY outbox_id").fetchall()
    connection.executemany("DELETE FROM outbox WHERE outbox_id = ?", [(row["outbox_id"],) for row in rows])
    return [(row["recipient_id"], Event(row["event"], row["group_id"], row["user_id"])) for row in rows]
