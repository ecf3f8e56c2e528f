"""What operators see of all groups: policy, members, how much is stored, what is overdue."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

from conclave.errors import NotFoundError
from conclave.retention.jobs import Scope
from conclave.retention.resolve import PolicySettings
from conclave.store import bodies
from conclave.store.overdue import Due
from conclave.store.senders import SENT

MEASURED = 10_000
"""The bodies of up to 10,000 messages of a group are measured; of more, as many are taken as a sample."""

ROWS_AT_ONCE = 1000
"""Bodies are measured 1,000 at a time."""


@dataclass(frozen=True)
class Row:
    """One group. Times are Unix seconds, lifetimes seconds, KEEP or AFTER_FETCH.

    ``deleted_at``: None unless it was deleted and something of it is left; such a group has no name any more.
    ``hot_messages`` and ``archived_messages``: where they lie; a copy that the archive serves already counts as hot.
    ``archived_bytes``: of bodies. ``oldest``: when the oldest of them was stored; None: there are none. ``holds``: the
    legal holds on the group, without those on users. ``overdue_since``: None if nothing is overdue. ``is_late``: for
    longer than runs explain, see ``Due.is_late``. ``border``: messages up to this number are served by the archive.
    """

    group_id: str
    name: str
    alias: str
    deleted_at: int | None
    lifetime: int
    min_lifetime: int
    source: str
    members: int
    hot_messages: int
    archived_messages: int
    archived_bytes: int
    oldest: int | None
    holds: int
    overdue_since: int | None
    is_late: bool
    border: int

    def matches(self, like: str) -> bool:
        """Tell whether the name or the alias contains ``like``; upper and lower case are the same."""
        wanted = like.casefold()
        return wanted in self.name.casefold() or wanted in self.alias.casefold()


@dataclass(frozen=True)
class Amounts:
    """The bytes of a group's or a user's bodies in the hot store. ``is_estimate``: there were more than MEASURED."""

    hot_bytes: int
    is_estimate: bool


_ROWS = """
WITH stored AS (
    SELECT group_key, group_id, group_name, alias, NULL AS deleted_at, message_expiry_seconds, min_lifetime_seconds,
        archived_seq FROM groups
    UNION ALL
    SELECT group_key, group_id, '', '', created_at, message_expiry_seconds, min_lifetime_seconds, 0 FROM tombstones
), joined AS MATERIALIZED (SELECT group_key, count(*) AS members FROM members {of_one} GROUP BY group_key
), hot AS MATERIALIZED (
    SELECT group_key, count(*) AS messages, min(created_at) AS oldest FROM messages {of_one} GROUP BY group_key
), archived AS MATERIALIZED (
    SELECT group_key, sum(message_count) AS messages, sum(body_bytes) AS bytes, min(oldest) AS oldest
    FROM archive_parts {of_one} GROUP BY group_key
), held AS MATERIALIZED (
    SELECT group_key, count(*) AS holds FROM holds WHERE group_key IS NOT NULL GROUP BY group_key
)
SELECT stored.*, ifnull(members, 0) AS members, ifnull(hot.messages, 0) AS hot_messages,
    ifnull(archived.messages, 0) AS archived_messages, ifnull(bytes, 0) AS archived_bytes, ifnull(holds, 0) AS holds,
    min(ifnull(hot.oldest, archived.oldest), ifnull(archived.oldest, hot.oldest)) AS oldest
FROM stored LEFT JOIN joined USING (group_key) LEFT JOIN hot USING (group_key) LEFT JOIN archived USING (group_key)
LEFT JOIN held USING (group_key) {of_one} ORDER BY group_name, deleted_at
"""
"""All groups, or one. Members, messages and parts are counted in one pass of an index each."""


def list_all(
    connection: sqlite3.Connection,
    settings: PolicySettings,
    schedule: Sequence[tuple[Scope, int]],
    now: int,
    due: Mapping[int, Due],
    group_key: int | None = None,
) -> list[Row]:
    """List all groups by name, and deleted ones of which something is left first; or one group alone.

    ``due``: what is overdue at the second ``now``, by group key.
    """
    of_one = "" if group_key is None else f"WHERE group_key = {group_key:d}"
    rows = []
    for row in connection.execute(_ROWS.format(of_one=of_one)):
        policy = settings.of_group(row["group_id"], row["message_expiry_seconds"], row["min_lifetime_seconds"])
        overdue = due.get(row["group_key"])
        rows.append(
            Row(
                group_id=str(UUID(bytes=row["group_id"])) if row["group_id"] else "",
                name=row["group_name"],
                alias=row["alias"],
                deleted_at=row["deleted_at"],
                lifetime=policy.lifetime,
                min_lifetime=policy.min_lifetime,
                source=policy.source.value,
                members=row["members"],
                hot_messages=row["hot_messages"],
                archived_messages=row["archived_messages"],
                archived_bytes=row["archived_bytes"],
                oldest=row["oldest"],
                holds=row["holds"],
                overdue_since=overdue.since if overdue else None,
                is_late=bool(overdue and overdue.is_late(schedule, now)),
                border=row["archived_seq"],
            )
        )
    return rows


def key_of(connection: sqlite3.Connection, group_id: bytes) -> int:
    """Return the key of a group, also of a deleted one of which something is left. Raises NotFoundError."""
    row = connection.execute(
        "SELECT group_key FROM groups WHERE group_id = ?1"
        " UNION ALL SELECT group_key FROM tombstones WHERE group_id = ?1",
        (group_id,),
    ).fetchone()
    if row is None:
        raise NotFoundError("no such group, or nothing is left of it")
    return int(row[0])


def amounts(connection: sqlite3.Connection, group_key: int, messages: int) -> Amounts:
    """Return how many bytes of bodies the hot store has of a group with so many ``messages`` there."""
    if not messages:
        return Amounts(0, is_estimate=False)
    step = -(-messages // MEASURED)
    chosen = connection.execute(
        "SELECT message_id FROM messages WHERE group_key = ? AND sequence_num % ? = 0", (group_key, step)
    )
    return measured(connection, [row[0] for row in chosen], messages, step)


def amounts_of_user(connection: sqlite3.Connection, user_id: bytes) -> tuple[int, Amounts]:
    """Return how many application messages of a user the hot store has, and how many bytes of bodies."""
    sent = f"FROM {SENT} WHERE sender_id = ? AND NOT is_commit"
    messages: int = connection.execute(f"SELECT count(*) {sent}", (user_id,)).fetchone()[0]
    step = max(1, -(-messages // MEASURED))
    chosen = islice(connection.execute(f"SELECT message_id {sent}", (user_id,)), 0, None, step)
    return messages, measured(connection, [row[0] for row in chosen], messages, step)


def measured(connection: sqlite3.Connection, ids: Sequence[int], messages: int, step: int) -> Amounts:
    """Return the bytes of so many ``messages``, of which every ``step``-th has its body in ``ids``."""
    chunks = [ids[at : at + ROWS_AT_ONCE] for at in range(0, len(ids), ROWS_AT_ONCE)]
    total = sum(sum(bodies.sizes(connection, some)) for some in chunks)
    return Amounts(total if step == 1 else total * messages // max(1, len(ids)), is_estimate=step > 1)
