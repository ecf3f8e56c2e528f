"""Selects the messages that move to the archive next. Writes to temporary tables only.

The functions have two parameters in common. ``least``: only messages of groups that keep them longer than this many
seconds move. ``before``: and only those created before this Unix second, exclusive.
"""

import json
import sqlite3

from conclave.retention.policy import GroupPolicy
from conclave.retention.rules import COMMITS_ABOVE
from conclave.store import bodies
from conclave.store.archive.moves import MoveRange

HOUR = 3600
"""Messages are counted by the hour in which they were created."""

SAMPLE_EVERY = 16
"""One of 16 messages is sampled, to estimate how many were created in each hour."""

_ID_HASH = "(((group_key * 40503 + sequence_num & 0xffffffff) * 2654435761) >> 16)"
"""A hash of the message id, for a pseudo-random sample. By number alone, small groups might not be sampled."""


def _list_movable(connection: sqlite3.Connection, least: int, before: int) -> None:
    """List in temp.movable the groups that have messages to be moved to the archive.

    Groups restored from the archive are omitted until its space is reclaimed: it would have their messages twice. The
    column ``lifetime`` is the class in which the messages are archived.
    """
    connection.execute("DROP TABLE IF EXISTS temp.movable")
    connection.execute("CREATE TEMP TABLE movable (group_key INTEGER PRIMARY KEY, lifetime INTEGER)")
    all_lifetimes = [row[0] for row in connection.execute("SELECT DISTINCT effective_expiry FROM groups")]
    lifetimes = [lifetime for lifetime in all_lifetimes if GroupPolicy(lifetime).outlives(least)]
    # Materialized, otherwise messages would be searched in groups of any lifetime.
    connection.execute(
        "WITH lasting AS MATERIALIZED (SELECT group_key, effective_expiry AS lifetime FROM groups"
        " WHERE effective_expiry IN (SELECT value FROM json_each(?)))"
        " INSERT INTO temp.movable SELECT group_key, lifetime FROM lasting WHERE EXISTS"
        " (SELECT 1 FROM messages WHERE messages.group_key = lasting.group_key AND created_at < ?) AND NOT EXISTS"
        " (SELECT 1 FROM archive_returned WHERE archive_returned.group_key = lasting.group_key)",
        (json.dumps(lifetimes), before),
    )


def time_slices(connection: sqlite3.Connection, least: int, before: int, rows: int) -> list[int]:
    """Divide the messages to be moved by time into slices of about ``rows`` messages; return the slices' ends.

    The ends are Unix seconds, exclusive, ascending; the last is ``before``. Slices are planned 5% smaller, since the
    counts are estimates. An hour is not divided, so a slice may be larger. The first of several slices is four times
    smaller: until it is archived, nothing can be deleted from the hot store. Slicing by time fills few partitions at
    once.
    """
    _list_movable(connection, least, before)
    hours = connection.execute(
        "SELECT created_at / ?1 AS hour, count(*) * ?2 FROM temp.movable CROSS JOIN messages USING (group_key)"
        f" WHERE created_at < ?3 AND {_ID_HASH} % ?2 = 0 GROUP BY hour ORDER BY hour",
        (HOUR, SAMPLE_EVERY, before),
    ).fetchall()
    full_slice = rows * 95 // 100
    slice_limit = full_slice // 4 if sum(count for _, count in hours) > full_slice else full_slice
    bounds, slice_count = [], 0
    for hour, count in hours:
        if slice_count and slice_count + count > slice_limit:
            bounds.append(hour * HOUR)
            slice_count, slice_limit = 0, full_slice
        slice_count += count
    return [*bounds, before]


def count(connection: sqlite3.Connection, least: int, before: int) -> int:
    """Return how many messages may move: those of unfinished batches, and the candidates of ``choose``."""
    _list_movable(connection, least, before)
    cursor = connection.execute(
        f"SELECT ({_UNFINISHED}) + (SELECT ifnull(sum(count), 0) FROM ({_CANDIDATES}))", {"before": before}
    )
    return int(cursor.fetchone()[0])


def has_work(connection: sqlite3.Connection, least: int, before: int) -> bool:
    """Return whether any message may move.

    A group may have old messages, but none that may move, as long as a member has not fetched them.
    """
    _list_movable(connection, least, before)
    return connection.execute(f"{_CANDIDATES} LIMIT 1", {"before": before}).fetchone() is not None


def choose(
    connection: sqlite3.Connection, least: int, before: int, rows: int, size: int
) -> tuple[list[MoveRange], bool]:
    """Choose the next batch; return its ranges, and whether more may be left.

    The batch has messages in order of their numbers: at most ``rows`` messages with ``size`` bytes of bodies, but at
    least one message if there is any.
    """
    _list_movable(connection, least, before)
    while True:
        ranges, count = _choose(connection, before, rows)
        total_size = _measure(connection, ranges)
        if total_size <= size or count <= 1:
            return ranges, count == rows
        rows = max(1, min(count - 1, count * size // total_size * 9 // 10))


def _choose(connection: sqlite3.Connection, before: int, rows: int) -> tuple[list[MoveRange], int]:
    """Choose by the number of messages only; return the ranges and how many messages they have."""
    ranges: list[MoveRange] = []
    remaining = rows
    for row in connection.execute(_CANDIDATES, {"before": before}).fetchall():
        numbers = row["first_seq"], row["last_seq"], row["count"]
        if row["count"] > remaining:
            numbers = connection.execute(
                "SELECT min(sequence_num), max(sequence_num), count(*) FROM (SELECT sequence_num FROM messages"
                " WHERE group_key = ? AND sequence_num >= ? ORDER BY sequence_num LIMIT ?)",
                (row["group_key"], row["first_seq"], remaining),
            ).fetchone()
        first, last, count = numbers
        if count:
            ranges.append(MoveRange(row["group_key"], first, last, row["lifetime"]))
            remaining -= count
        if remaining <= 0:
            break
    return ranges, rows - remaining


_UNFINISHED = """
SELECT count(*) FROM archive_moves JOIN archive_move_ranges AS ranges USING (batch) JOIN groups USING (group_key)
    JOIN messages USING (group_key)
WHERE finished_at IS NULL AND sequence_num BETWEEN first_seq AND ranges.last_seq AND sequence_num > archived_seq
"""

_CANDIDATES = f"""
WITH under_way AS MATERIALIZED (
    SELECT group_key, max(ranges.last_seq) AS last_seq
    FROM archive_moves JOIN archive_move_ranges AS ranges USING (batch) WHERE finished_at IS NULL GROUP BY group_key
), moving AS MATERIALIZED (
    SELECT group_key, lifetime, max(archived_seq, ifnull(under_way.last_seq, 0)) AS border,
        iif(lifetime < 0, 9223372036854775807, {COMMITS_ABOVE}) AS fetched
    FROM temp.movable JOIN groups USING (group_key) LEFT JOIN under_way USING (group_key)
), bounded AS MATERIALIZED (
    SELECT *, min(ifnull((
        SELECT sequence_num FROM messages
        WHERE messages.group_key = moving.group_key AND sequence_num > border AND +created_at >= :before
        ORDER BY sequence_num LIMIT 1
    ), 9223372036854775807), ifnull((
        SELECT min(sequence_num) FROM self_destructing WHERE self_destructing.group_key = moving.group_key
    ), 9223372036854775807)) AS young FROM moving
)
SELECT bounded.group_key, lifetime, min(sequence_num) AS first_seq, max(sequence_num) AS last_seq, count(*) AS count
FROM bounded CROSS JOIN messages
WHERE messages.group_key = bounded.group_key AND sequence_num > border AND sequence_num < young
    AND sequence_num <= fetched
GROUP BY bounded.group_key ORDER BY bounded.group_key
"""
"""For each group, the numbers that may move: those above its border and below its first young message.

A message moves only with all messages before it in the group, although after a clock was set back later messages may
have earlier times. Self-destructing messages do not move, nor do messages that follow them: they are short-lived, and
the archive would have to rewrite a file for each. The first young message is searched by number, which stops there; a
search by time would read all young messages. Where unfetched commits do not expire by age, no message moves that a
member has not fetched: otherwise each run would have to find the commits in the archive.
"""


def _measure(connection: sqlite3.Connection, ranges: list[MoveRange]) -> int:
    """Return the total size in bytes of the bodies of the chosen messages."""
    total = 0
    for each in ranges:
        first, last = (bodies.message_id(each.group_key, number) for number in (each.first_seq, each.last_seq))
        row = connection.execute(
            "SELECT ifnull(sum(length(body)), 0) FROM message_bodies WHERE message_id BETWEEN ? AND ?", (first, last)
        ).fetchone()
        total += row[0]
    return total
