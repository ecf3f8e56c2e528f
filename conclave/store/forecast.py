"""Foretells what a change of a group's policy hides: counted in the hot store, and by the index of the archive.

A message counts if it is served now, and would not be served any more once the new policy is in force and a cleanup run
has passed. That its bytes stay for longer, under a legal hold or a least lifetime, makes no difference.
"""

import sqlite3
from dataclasses import dataclass, replace
from typing import NamedTuple

from conclave.retention.policy import GroupPolicy
from conclave.retention.resolve import PolicySettings
from conclave.store import marks, policies, visibility
from conclave.store.archive import stretches
from conclave.store.archive.stretches import Part, Stretch
from conclave.store.groups import Group
from conclave.store.visibility import Sight


class Edge(NamedTuple):
    """What a change hides: messages up to a number, and those created before a second.

    ``gone``: the number, inclusive. ``hidden_before``: the Unix second, exclusive; commits that are kept are exempt.
    """

    gone: int
    hidden_before: int


@dataclass(frozen=True)
class Expiring:
    """How many messages expire, and when the oldest of them was stored, Unix seconds; 0 and 0 for none."""

    messages_expiring: int = 0
    oldest_expiring: int = 0

    def __add__(self, other: "Expiring") -> "Expiring":
        """Return both together."""
        oldest = min((each.oldest_expiring for each in (self, other) if each.messages_expiring), default=0)
        return Expiring(self.messages_expiring + other.messages_expiring, oldest)


NOTHING = Expiring()


@dataclass(frozen=True)
class Unsure:
    """What only the archive can tell: how many messages of ``stretch`` are hidden by ``edge``.

    ``at_most``: what expires if all of them are.
    """

    stretch: Stretch
    edge: Edge
    at_most: Expiring


@dataclass(frozen=True)
class Forecast:
    """What is known without reading the archive: what expires for sure, and what is unsure, None for nothing."""

    sure: Expiring
    unsure: Unsure | None = None


def of_change(
    connection: sqlite3.Connection, group: Group, changed: Group, settings: PolicySettings, now: int
) -> Forecast:
    """Foretell what goes if ``group`` becomes ``changed`` at the Unix second ``now``.

    It takes as long as it takes to pass over as many entries of an index as messages expire. Only if the index does not
    tell all, each message is looked at: what the group shows depends on more than numbers and times then.
    """
    old, new = policies.of_group(group, settings), policies.of_group(changed, settings)
    if not hides_otherwise(old, new):
        return Forecast(NOTHING)
    sight = visibility.of_group(connection, group, settings, now)
    gone = marks.foresee_gone(connection, group.group_key, old, new)
    edge = Edge(gone, max(sight.hidden_before, new.expires_before(now)))
    sure = _count_hot(connection, group, sight, edge, settings)
    found = stretches.stretch(connection, group, sight.gone_below, sight)
    if found is None:
        return Forecast(sure)
    there = [part for part in found.parts if part.first_seq <= found.border]
    parts = [part for part in there if part.first_seq <= edge.gone or part.oldest < edge.hidden_before]
    whole = [part for part in parts if _goes_whole(part, found, edge)]
    rest = [part for part in parts if part not in whole]
    sure += _all_of(whole, sight)
    return Forecast(sure, Unsure(replace(found, parts=rest), edge, _all_of(rest, sight)) if rest else None)


def hides_otherwise(old: GroupPolicy, new: GroupPolicy) -> bool:
    """Tell whether two policies differ in what they hide. How long bytes stay, hides nothing."""
    return (old.lifetime, old.age_limit) != (new.lifetime, new.age_limit)


def _goes_whole(part: Part, stretch: Stretch, edge: Edge) -> bool:
    """Tell whether all messages of a part are served now, and expire."""
    sight = stretch.sight
    is_shown = part.first_seq > sight.gone_below and part.last_seq <= stretch.border
    is_shown = is_shown and part.oldest >= sight.hidden_before and not stretch.deleted_senders
    is_aged = part.newest < edge.hidden_before and part.last_seq <= sight.commits_above
    return is_shown and (is_aged or part.last_seq <= edge.gone)


def _all_of(parts: list[Part], sight: Sight) -> Expiring:
    oldest = min((part.oldest for part in parts), default=0)
    return Expiring(sum(part.message_count for part in parts), max(oldest, sight.hidden_before) if parts else 0)


def _count_hot(
    connection: sqlite3.Connection, group: Group, sight: Sight, edge: Edge, settings: PolicySettings
) -> Expiring:
    after = max(sight.gone_below, group.archived_seq)
    values = {"group_key": group.group_key, **sight.bounds(after), "gone": edge.gone, "edge": edge.hidden_before}
    admitted, is_kept = sight.hot
    hides = []
    if edge.gone > after:
        hides.append("sequence_num <= :gone")
    if edge.hidden_before > sight.hidden_before:
        hides.append(f"created_at < :edge AND NOT ({is_kept})" if sight.policy.keeps_commits else "created_at < :edge")
    if not hides:
        return NOTHING
    if not sight.policy.keeps_commits and _is_all_shown(connection, values):
        admitted = (
            "created_at >= :hidden_before" if _is_any(connection, "created_at < :hidden_before", values) else "TRUE"
        )
    if group.self_destructs:
        admitted += f" AND NOT {visibility.is_redacted(sight.now, settings.self_destruct_max_age)}"
    where = f"group_key = :group_key AND {admitted} AND ({' OR '.join(hides)})"
    count = connection.execute(f"SELECT count(*) FROM messages WHERE {where}", values).fetchone()[0]
    if not count:
        return NOTHING
    # The oldest comes first in this index, and SQLite would not take it by itself for a range of numbers.
    oldest = f"SELECT created_at FROM messages INDEXED BY messages_by_age WHERE {where} ORDER BY created_at LIMIT 1"
    return Expiring(count, connection.execute(oldest, values).fetchone()[0])


def _is_all_shown(connection: sqlite3.Connection, values: dict[str, int]) -> bool:
    """Tell whether the group has no messages in the hot store but such as its policy alone decides about."""
    deleted = connection.execute("SELECT 1 FROM user_tombstones").fetchone()
    return deleted is None and not _is_any(connection, "sequence_num <= :after", values)


def _is_any(connection: sqlite3.Connection, condition: str, values: dict[str, int]) -> bool:
    sql = f"SELECT 1 FROM messages WHERE group_key = :group_key AND {condition} LIMIT 1"
    return connection.execute(sql, values).fetchone() is not None
