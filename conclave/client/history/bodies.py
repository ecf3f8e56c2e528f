"""The texts of messages, in segments: append-only tables.

When SQLite deletes and inserts rows, it moves other rows between pages, and leaves copies that ``secure_delete``
misses. So rows are only appended. Erasing overwrites a text with zeros of the same length. An empty segment is dropped,
which overwrites its pages. A sparse segment is copied to the newest one, then dropped.
"""

import sqlite3
from collections.abc import Sequence

NOWHERE = (0, 0)
"""The location of an empty text."""

SEGMENT_BYTES = 512 * 1024
"""Total size of the texts in a full segment."""


def put(connection: sqlite3.Connection, body: bytes) -> tuple[int, int]:
    """Store a text; return its segment and its id there, or NOWHERE for an empty text."""
    if not body:
        return NOWHERE
    newest = connection.execute("SELECT segment, total_bytes FROM segments ORDER BY segment DESC LIMIT 1").fetchone()
    segment = newest[0] if newest and newest[1] < SEGMENT_BYTES else _begin(connection)
    body_id = connection.execute(f"INSERT INTO bodies_{segment} (body) VALUES (?)", (body,)).lastrowid or 0
    connection.execute(
        "UPDATE segments SET total_bytes = total_bytes + ?1, live_bytes = live_bytes + ?1 WHERE segment = ?2",
        (len(body), segment),
    )
    return segment, body_id


def get(connection: sqlite3.Connection, segment: int, body_id: int) -> bytes:
    """Return a text."""
    if (segment, body_id) == NOWHERE:
        return b""
    found: bytes = connection.execute(f"SELECT body FROM bodies_{segment} WHERE body_id = ?", (body_id,)).fetchone()[0]
    return found


def erase(connection: sqlite3.Connection, locations: Sequence[tuple[int, int]]) -> None:
    """Overwrite texts, and drop empty segments. ``locations``: as returned by ``put``."""
    for segment, body_id in set(locations) - {NOWHERE}:
        size = connection.execute(
            f"SELECT length(body) FROM bodies_{segment} WHERE body_id = ?", (body_id,)
        ).fetchone()[0]
        connection.execute(f"UPDATE bodies_{segment} SET body = zeroblob(?) WHERE body_id = ?", (size, body_id))
        connection.execute("UPDATE segments SET live_bytes = live_bytes - ? WHERE segment = ?", (size, segment))
    if locations:
        empty_segments = connection.execute("SELECT segment FROM segments WHERE live_bytes = 0").fetchall()
        for (segment,) in empty_segments:
            drop(connection, segment)


def sparse(connection: sqlite3.Connection) -> int | None:
    """Return a full segment that is less than half used; None if there is none."""
    row = connection.execute(
        "SELECT segment FROM segments WHERE total_bytes >= ? AND live_bytes * 2 < total_bytes LIMIT 1", (SEGMENT_BYTES,)
    ).fetchone()
    return row and int(row[0])


def drop(connection: sqlite3.Connection, segment: int) -> None:
    """Drop a segment with its texts."""
    connection.execute(f"DROP TABLE bodies_{segment}")
    connection.execute("DELETE FROM segments WHERE segment = ?", (segment,))


def _begin(connection: sqlite3.Connection) -> int:
    segment = connection.execute("INSERT INTO segments DEFAULT VALUES").lastrowid
    connection.execute(f"CREATE TABLE bodies_{segment} (body_id INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT")
    return segment or 0
