"""What a purge would take from a group: counts it in the hot store, and says what to count in the archive."""

import sqlite3
from dataclasses import dataclass

from conclave.retention.policy import FOREVER
from conclave.retention.resolve import PolicySettings
from conclave.store import bodies, policies
from conclave.store.archive import moves
from conclave.store.groups import Group

AT_ONCE = 1000
"""The sizes of at most 1,000 bodies are looked up at a time."""


@dataclass(frozen=True)
class Amount:
    """Some messages of a group.

    ``oldest`` and ``newest``: Unix seconds, 0 without messages. ``held``: how many of them a legal hold covers.
    ``young``: how many others are not old enough to be erased.
    """

    messages: int = 0
    body_bytes: int = 0
    oldest: int = 0
    newest: int = 0
    held: int = 0
    young: int = 0


@dataclass(frozen=True)
class Sought:
    """Which messages of a group a purge would take.

    ``border``: those up to this number are in the archive. ``parts``: the parts of the archive to look at, as lifetime
    and span. ``kept_commits``: how many commits in the hot store stay, since the policy keeps them until every member
    has fetched them.
    """

    group: Group
    condition: str
    held: str
    erasable_before: int
    border: int
    parts: tuple[tuple[int, int], ...]
    kept_commits: int

    @property
    def sums(self) -> str:
        """What to select, in SQL: the values of Amount, but for the bytes."""
        young = f"NOT ({self.held}) AND created_at >= {self.erasable_before}"
        return (
            f"count(*), min(created_at), max(created_at), sum(CASE WHEN {self.held} THEN 1 ELSE 0 END),"
            f" sum(CASE WHEN {young} THEN 1 ELSE 0 END)"
        )


def seek(connection: sqlite3.Connection, group: Group, settings: PolicySettings, before: int, now: int) -> Sought:
    """Find out what a purge of what was created before the Unix second ``before`` would take at ``now``."""
    policy = policies.of_group(group, settings)
    above = policies.commits_above(connection, group.group_key, policy)
    kept = "FALSE" if above == FOREVER else f"is_commit AND sequence_num > {above}"
    senders = connection.execute("SELECT DISTINCT user_id FROM holds WHERE user_id IS NOT NULL").fetchall()
    by_user = f"sender_id IN ({', '.join(_literal(row[0]) for row in senders)})" if senders else "FALSE"
    kept_commits = connection.execute(
        f"SELECT count(*) FROM messages WHERE group_key = ? AND created_at < ? AND sequence_num > ? AND {kept}",
        (group.group_key, before, group.archived_seq),
    ).fetchone()[0]
    return Sought(
        group,
        f"group_key = {group.group_key} AND created_at < {before} AND NOT ({kept})",
        "TRUE" if policies.is_held(connection, group.group_key) else by_user,
        policy.erasable_before(now),
        group.archived_seq,
        tuple((part.lifetime, part.span) for part in moves.parts(connection, group.group_key) if part.oldest < before),
        kept_commits,
    )


def count(connection: sqlite3.Connection, sought: Sought) -> Amount:
    """Count what is in the hot store."""
    where = f"FROM messages WHERE {sought.condition} AND sequence_num > {sought.border}"
    messages, *others = connection.execute(f"SELECT {sought.sums} {where}").fetchone()
    if not messages:
        return Amount()
    total, rows = 0, connection.execute(f"SELECT message_id {where}")
    while some := rows.fetchmany(AT_ONCE):
        total += sum(bodies.sizes(connection, [row[0] for row in some]))
    return Amount(messages, total, *others)


def _literal(user_id: bytes) -> str:
    return f"X'{user_id.hex()}'"
