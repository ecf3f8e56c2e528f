"""How far cleanup has come with messages that were stored before there were keys.

In the hot store a segment after the other goes, see ``compaction.take_over``. Once none is left, the parts of the
archive that may have such messages are listed, and taken over a partition after the other. A group of which nothing is
left has its ``keyed_after`` lowered: all its messages are under keys. Restores and moves carry on meanwhile.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from conclave.keys import ranges
from conclave.keys.cover import Range
from conclave.keys.tree import HEIGHT

RUN_SECONDS = 120.0
"""A run takes over for two minutes at most, but at least a segment or a partition: others wait for their run."""

GROUPS_AT_ONCE = 256
"""The parts of 256 groups are listed at once."""

RANGES_AT_ONCE = 1000
"""At most 1,000 ranges of numbers that no message has are noted at once."""


def is_done(connection: sqlite3.Connection) -> bool:
    """Tell whether no message lies as it came, or there are no keys."""
    row = connection.execute("SELECT taken_over FROM key_state").fetchone()
    return row is None or bool(row[0])


def begun_in(connection: sqlite3.Connection) -> list[tuple[bytes, int]]:
    """Return the first number of each block that the hot store has messages of without a key, with its group's id."""
    rows = connection.execute(
        "SELECT DISTINCT group_id, sequence_num >> ? FROM messages JOIN (SELECT group_key, group_id, keyed_after"
        " FROM groups UNION ALL SELECT group_key, group_id, keyed_after FROM tombstones) USING (group_key)"
        " WHERE sequence_num <= keyed_after AND message_id >> 32 <= (SELECT plain_segments FROM key_state)",
        (HEIGHT,),
    )
    return [(row[0], row[1] << HEIGHT) for row in rows]


def already(connection: sqlite3.Connection) -> dict[bytes, list[Range]]:
    """Return the messages of the hot store that were taken over while their group does not say so yet.

    The database may be one of a former schema, of which nothing was.
    """
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'plain_parts'").fetchone():
        return {}
    found: dict[bytes, list[int]] = {}
    for group_id, number in connection.execute(
        "SELECT group_id, sequence_num FROM messages JOIN groups USING (group_key) WHERE sequence_num <= keyed_after"
        " AND message_id >> 32 > (SELECT plain_segments FROM key_state) ORDER BY sequence_num"
    ):
        found.setdefault(group_id, []).append(number)
    return {group_id: ranges.of(numbers) for group_id, numbers in found.items()}


def has_plain_segments(connection: sqlite3.Connection) -> bool:
    """Tell whether a segment is left in which messages may lie as they came."""
    return bool(
        connection.execute(
            "SELECT EXISTS (SELECT 1 FROM body_segments WHERE total_bytes > 0"
            " AND segment <= (SELECT plain_segments FROM key_state))"
        ).fetchone()[0]
    )


def plain_groups(connection: sqlite3.Connection) -> list[int]:
    """Return the groups, deleted ones too, of which the archive may have messages that lie as they came."""
    rows = connection.execute(
        "SELECT DISTINCT group_key FROM archive_parts AS parts LEFT JOIN groups USING (group_key)"
        " LEFT JOIN tombstones USING (group_key)"
        " WHERE first_seq <= ifnull(groups.keyed_after, tombstones.keyed_after) ORDER BY group_key"
    )
    return [row[0] for row in rows]


def list_parts(connection: sqlite3.Connection, group_keys: Iterable[int]) -> None:
    """List the parts of some groups, see ``plain_groups``. Repeating it does no harm."""
    connection.executemany(
        "INSERT OR IGNORE INTO plain_parts (group_key, lifetime, span) SELECT group_key, lifetime, span"
        " FROM archive_parts WHERE group_key = ?",
        [(key,) for key in group_keys],
    )


def finish_hot(connection: sqlite3.Connection) -> None:
    """Note that no message of the hot store lies as it came. The parts of the archive are listed."""
    connection.execute("UPDATE key_state SET plain_segments = 0")


def next_partition(connection: sqlite3.Connection) -> tuple[int, int] | None:
    """Return a partition, lifetime and span, that has listed parts; None: there is none any more."""
    row = connection.execute(
        "SELECT lifetime, span FROM plain_parts WHERE EXISTS (SELECT 1 FROM archive_parts AS parts"
        " WHERE parts.group_key = plain_parts.group_key AND parts.lifetime = plain_parts.lifetime"
        " AND parts.span = plain_parts.span) LIMIT 1"
    ).fetchone()
    return (row[0], row[1]) if row else None


@dataclass(frozen=True)
class PlainGroup:
    """A group with messages that lie as they came: those with numbers up to ``keyed_after`` may."""

    group_id: bytes
    keyed_after: int


def of_partition(connection: sqlite3.Connection, lifetime: int, span: int) -> dict[int, PlainGroup]:
    """Return the groups that have listed parts in a partition, by their keys."""
    rows = connection.execute(
        "SELECT group_key, ifnull(groups.group_id, tombstones.group_id), ifnull(groups.keyed_after,"
        " tombstones.keyed_after) FROM plain_parts LEFT JOIN groups USING (group_key)"
        " LEFT JOIN tombstones USING (group_key) WHERE lifetime = ? AND span = ?",
        (lifetime, span),
    )
    return {row[0]: PlainGroup(row[1], row[2]) for row in rows if row[1]}


def strike(connection: sqlite3.Connection, lifetime: int, span: int) -> None:
    """Strike the parts of a partition off the list: they were taken over."""
    connection.execute("DELETE FROM plain_parts WHERE lifetime = ? AND span = ?", (lifetime, span))


@dataclass(frozen=True)
class Lowered:
    """What becomes of a group whose messages are all under keys.

    ``keyed_after``: as it is from now on, just below the first message. ``last``: the last number that was given before
    there were keys. ``unused``: the numbers up to there that no message has.
    """

    group_id: bytes
    keyed_after: int
    last: int
    unused: Sequence[Range]


def lowered(connection: sqlite3.Connection, archived: Mapping[int, Sequence[Range]]) -> dict[int, Lowered]:
    """Return what becomes of groups of which no message lies as it came, by their keys.

    ``archived``: the numbers that the archive has, by the keys of groups.
    """
    rows = connection.execute(
        "SELECT group_key, group_id, min(keyed_after, last_seq) FROM groups WHERE keyed_after > 0 AND NOT EXISTS"
        " (SELECT 1 FROM plain_parts JOIN archive_parts USING (group_key, lifetime, span)"
        " WHERE plain_parts.group_key = groups.group_key)"
    ).fetchall()
    return {key: _lowered(connection, key, group_id, last, archived.get(key, ())) for key, group_id, last in rows}


def _lowered(
    connection: sqlite3.Connection, group_key: int, group_id: bytes, last: int, archived: Sequence[Range]
) -> Lowered:
    hot = connection.execute(
        "SELECT sequence_num FROM messages WHERE group_key = ? AND sequence_num <= ? ORDER BY sequence_num",
        (group_key, last),
    )
    alive = ranges.joined([*ranges.of(each[0] for each in hot), *archived])
    first = min(alive[0].first if alive else last + 1, last + 1)
    return Lowered(group_id, first - 1, last, ranges.without([Range(first, last)], alive))


def lower(connection: sqlite3.Connection, group_key: int, keyed_after: int) -> None:
    """Note that all messages of a group are under keys."""
    connection.execute(
        "UPDATE groups SET keyed_after = min(keyed_after, ?) WHERE group_key = ?", (keyed_after, group_key)
    )


def finish(connection: sqlite3.Connection) -> None:
    """Note that all is done, if it is."""
    connection.execute(
        "DELETE FROM plain_parts WHERE (SELECT plain_segments = 0 FROM key_state) AND NOT EXISTS"
        " (SELECT 1 FROM archive_parts AS parts WHERE parts.group_key = plain_parts.group_key"
        " AND parts.lifetime = plain_parts.lifetime AND parts.span = plain_parts.span)"
    )
    connection.execute(
        "UPDATE key_state SET taken_over = 1 WHERE plain_segments = 0 AND NOT EXISTS (SELECT 1 FROM plain_parts)"
    )
