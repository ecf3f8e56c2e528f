"""The list of groups for operators: policy, members, storage, overdue erasures."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from conclave.retention.jobs import Scope
from conclave.store.views.overdue import GroupBacklog


@dataclass(frozen=True)
class GroupSummary:
    """A group. Times are Unix seconds, lifetimes seconds, KEEP or AFTER_FETCH.

    ``hot_messages`` includes copies of messages that the archive serves already.
    """

    group_id: str
    name: str
    alias: str
    deleted_at: int | None
    """None unless the group was deleted and some of its messages are left; such a group has no name."""
    lifetime: int
    min_lifetime: int
    source: str
    members: int
    hot_messages: int
    archived_messages: int
    archived_bytes: int
    """The size of the archived bodies."""
    oldest: int | None
    """When the oldest message was stored; None: there are none."""
    holds: int
    """The number of legal holds on the group, without those on users."""
    overdue_since: int | None
    """None if nothing is overdue."""
    is_late: bool
    """Whether a run should have erased them already, see ``GroupBacklog.is_late``."""
    border: int
    """Messages up to this number are served by the archive."""

    def matches(self, text: str) -> bool:
        """Return whether the name or the alias contains ``text``, ignoring case."""
        folded = text.casefold()
        return folded in self.name.casefold() or folded in self.alias.casefold()


_ROWS = """
WITH stored AS (
    SELECT group_key, group_id, group_name AS name, alias, NULL AS deleted_at, effective_expiry AS lifetime,
        least_lifetime AS min_lifetime, policy_source AS source, archived_seq AS border FROM groups
    UNION ALL
    SELECT group_key, group_id, '', '', created_at, effective_expiry, least_lifetime, policy_source, 0 FROM tombstones
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
LEFT JOIN held USING (group_key) {of_one} ORDER BY name, deleted_at
"""
"""All groups, or one, with columns as in GroupSummary. Members, messages and parts are counted in one pass of an index
each.
"""


def list_all(
    connection: sqlite3.Connection,
    schedule: Sequence[tuple[Scope, int]],
    now: int,
    due: Mapping[int, GroupBacklog],
    group_key: int | None = None,
) -> list[GroupSummary]:
    """List all groups by name, with deleted ones that have messages left first; or a single group.

    ``due``: the overdue groups at the second ``now``, by group key.
    """
    of_one = "" if group_key is None else f"WHERE group_key = {group_key:d}"
    summaries = []
    for row in connection.execute(_ROWS.format(of_one=of_one)):
        values = dict(row)
        backlog = due.get(values.pop("group_key"))
        values["group_id"] = str(UUID(bytes=row["group_id"])) if row["group_id"] else ""
        values["overdue_since"] = backlog.since if backlog else None
        summaries.append(GroupSummary(**values, is_late=bool(backlog and backlog.is_late(schedule, now))))
    return summaries
