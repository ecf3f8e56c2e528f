"""Which messages move to the archive next: read only."""

import sqlite3
from collections.abc import Mapping

from conclave.store.archive_moves import Range

HOUR = 3600


def list_movable(connection: sqlite3.Connection, lifetimes: Mapping[int, int], before: int) -> None:
    """List in temp.movable the groups that have messages created before ``before`` (Unix seconds) still to be moved.

    ``lifetimes``: the effective expiry by the group's setting, for the settings whose groups use the archive.
    """
    connection.execute("DROP TABLE IF EXISTS temp.movable")
    connection.execute("CREATE TEMP TABLE movable (group_key INTEGER PRIMARY KEY, lifetime INTEGER)")
    for setting, lifetime in lifetimes.items():
        connection.execute(
            "INSERT INTO temp.movable SELECT group_key, ? FROM groups WHERE message_expiry_seconds = ? AND EXISTS"
            " (SELECT 1 FROM messages WHERE messages.group_key = groups.group_key AND created_at < ?)",
            (lifetime, setting, before),
        )


def time_slices(connection: sqlite3.Connection, before: int, rows: int) -> list[int]:
    """Return bounds (exclusive, ascending, the last is ``before``) between which lie about ``rows`` messages each.

    Moving them in this order finds their bodies together, and fills few parts at a time.
    """
    hours = connection.execute(
        "SELECT created_at / ?1 AS hour, count(*) FROM temp.movable CROSS JOIN messages USING (group_key)"
        " WHERE created_at < ?2 GROUP BY hour ORDER BY hour",
        (HOUR, before),
    )
    bounds, found = [], 0
    for hour, count in hours:
        if found and found + count > rows:
            bounds.append(hour * HOUR)
            found = 0
        found += count
    return [*bounds, before] if found else []


def count(connection: sqlite3.Connection, before: int) -> int:
    """Return how many messages of the groups of temp.movable were created before ``before``."""
    found = connection.execute(
        "SELECT count(*) FROM temp.movable CROSS JOIN messages USING (group_key) WHERE created_at < ?", (before,)
    )
    return int(found.fetchone()[0])


def choose(connection: sqlite3.Connection, before: int, rows: int, size: int) -> list[Range]:
    """Choose what moves next of the groups of temp.movable: messages older than ``before``, in the order of numbers.

    At most ``rows`` messages, and ``size`` bytes of bodies, but at least one message if there is any.
    """
    while True:
        chosen, count = _choose(connection, before, rows)
        measured = _measure(connection, chosen)
        if measured <= size or count <= 1:
            return chosen
        rows = max(1, min(count - 1, count * size // measured * 9 // 10))


def _choose(connection: sqlite3.Connection, before: int, rows: int) -> tuple[list[Range], int]:
    """Choose by count alone; return how many messages that are, too."""
    # A number is moved only with all before it, although a clock set back may have made later ones older.
    unmoved = "FROM messages WHERE messages.group_key = groups.group_key AND sequence_num > archived_seq"
    candidates = connection.execute(
        f"SELECT group_key, archived_seq, lifetime, (SELECT min(sequence_num) {unmoved} AND created_at >= ?) AS young,"
        f" (SELECT max(sequence_num) {unmoved}) AS newest"
        " FROM temp.movable JOIN groups USING (group_key) ORDER BY group_key",
        (before,),
    )
    chosen: list[Range] = []
    left = rows
    for row in candidates:
        last = row["newest"] if row["young"] is None else row["young"] - 1
        if row["newest"] is None:
            continue
        first, last, count = connection.execute(
            "SELECT min(sequence_num), max(sequence_num), count(*) FROM (SELECT sequence_num FROM messages"
            " WHERE group_key = ? AND sequence_num > ? AND sequence_num <= ? ORDER BY sequence_num LIMIT ?)",
            (row["group_key"], row["archived_seq"], last, left),
        ).fetchone()
        if count:
            chosen.append(Range(row["group_key"], first, last, row["lifetime"]))
            left -= count
        if left <= 0:
            break
    return chosen, rows - left


def _measure(connection: sqlite3.Connection, chosen: list[Range]) -> int:
    """Return how many bytes the bodies of the messages have."""
    connection.execute("DROP TABLE IF EXISTS temp.picked")
    connection.execute("CREATE TEMP TABLE picked (message_id INTEGER PRIMARY KEY)")
    for each in chosen:
        connection.execute(
            "INSERT INTO temp.picked SELECT message_id FROM messages"
            " WHERE group_key = ? AND sequence_num BETWEEN ? AND ?",
            (each.group_key, each.first_seq, each.last_seq),
        )
    total = 0
    for (segment,) in connection.execute("SELECT DISTINCT message_id >> 32 FROM temp.picked").fetchall():
        total += connection.execute(
            f"SELECT sum(length(body)) FROM temp.picked JOIN body_segment_{segment:d} ON body_id = message_id"
            " WHERE message_id BETWEEN ?1 << 32 AND (?1 << 32) + 4294967295",
            (segment,),
        ).fetchone()[0]
    connection.execute("DROP TABLE temp.picked")
    return total
