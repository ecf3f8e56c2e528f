"""Counts the messages that another policy, or a purge, would hide. Every preview uses this module.

Shadow rows are copies of the rows that decide which messages are hidden. They are in temporary tables of the same
names, visible only to their connection, which may be read-only. A rehearsal makes the change to the shadow rows:
it writes the settings, and ``marks.settle`` writes the policies and marks. The horizons of a group before and after
determine which messages become hidden; ``hidden.py`` counts them.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from conclave.retention import hidden, marks, rules, stretches, visibility
from conclave.retention.hidden import NOTHING, Aggregates, ArchiveCount, Horizon, MessageTotals
from conclave.retention.holds import HELD_SENDERS, is_held
from conclave.retention.policy import FOREVER, expiry_cutoff
from conclave.retention.resolve import PolicySettings
from conclave.retention.rules import IS_REDACTED, IS_TAKEN_BACK, UNREAD, is_kept
from conclave.retention.stretches import Part

if TYPE_CHECKING:
    from conclave.store.resources.groups import GroupRow

LARGE_SHARE = 0.1
"""A change is large if it hides more than a tenth of all messages at once."""


@dataclass(frozen=True)
class GroupImpact:
    """The messages that become hidden in one group."""

    known: MessageTotals
    """The totals that are known without reading the archive."""
    archive_count: ArchiveCount | None = None
    """The messages to count in the archive; None: no messages."""
    at_most: MessageTotals = NOTHING
    """An upper bound on ``archive_count``: all messages of the parts."""


@dataclass
class SettingsImpact:
    """The messages that become hidden by a change of settings."""

    groups: int = 0
    """How many groups get another policy."""
    sooner: int = 0
    """In how many of them messages may be erased sooner than before."""
    hiding: int = 0
    """In how many groups messages become hidden."""
    messages: int = 0
    """How many messages become hidden in the database."""
    body_bytes: int = 0
    """Their bytes, if measured."""
    archived: int = 0
    """How many messages become hidden in the archive."""
    archived_bytes: int = 0
    is_exact: bool = True
    """False if the numbers of the archive are upper bounds."""
    total: int = 0
    """All messages of groups that are not deleted; 0 if nothing becomes hidden."""

    @property
    def hidden(self) -> int:
        """How many messages become hidden; an upper bound unless ``is_exact``."""
        return self.messages + self.archived

    @property
    def is_large(self) -> bool:
        """Whether an operator should confirm the change."""
        return self.hidden > LARGE_SHARE * self.total


def of_change(
    connection: sqlite3.Connection, group: "GroupRow", changed: "GroupRow", settings: PolicySettings, now: int
) -> GroupImpact:
    """Rehearse changing ``group`` to ``changed`` at the Unix second ``now``, followed by a run.

    Counts the messages that are served now but not after the change, even if a legal hold or a minimum lifetime delays
    erasure. The cost is one index entry for each message that becomes hidden, or its row if the index does not suffice.
    """
    key = group.group_key
    lifetimes = changed.message_expiry_seconds, changed.min_lifetime_seconds
    if settings.of_group(group.group_id, *lifetimes).hides_as(group.policy):
        return GroupImpact(NOTHING)
    former = hidden.horizons(connection, [key], now, "gone_below")[key]
    with _shadow_rows_of(connection, key):
        connection.execute("UPDATE temp.groups SET message_expiry_seconds = ?, min_lifetime_seconds = ?", lifetimes)
        marks.settle(connection, settings, now, key)
        current = hidden.horizons(connection, [key], now)[key]
    where = hidden.sender_condition(connection)
    if group.self_destructs:
        where += f" AND NOT {IS_REDACTED}"
    if group.taken_back_count:
        where += f" AND NOT {IS_TAKEN_BACK}"
    totals = hidden.in_hot_store(connection, key, former, current, where=where, now=now)
    partial = set[Part]()
    for part, is_whole in hidden.in_archive(connection, key, former, current):
        if is_whole:
            totals += _all_of(part)
        else:
            partial.add(part)
    if not partial:
        return GroupImpact(totals)
    stretch = stretches.stretch(connection, group, 0, visibility.of_group(connection, group, now))
    parts = [part for part in stretch.parts if part in partial] if stretch else []
    if not (stretch and parts):
        return GroupImpact(totals)
    at_most = sum((replace(_all_of(part), oldest=max(part.oldest, former.before)) for part in parts), NOTHING)
    return GroupImpact(totals, ArchiveCount(replace(stretch, parts=parts), current, hidden.ALL), at_most)


def _all_of(part: Part) -> MessageTotals:
    return MessageTotals(part.message_count, part.body_bytes, part.oldest, part.newest)


def of_purge(connection: sqlite3.Connection, group: "GroupRow", before: int, now: int) -> GroupImpact:
    """Rehearse a purge at ``now`` of all messages created before the Unix second ``before``, hidden or not.

    Kept commits do not count. The archive itself is always counted, since its index does not record legal holds.
    """
    key = group.group_key
    current = hidden.horizons(connection, [key], now)[key]._replace(gone=0, before=before)
    former = Horizon(0, 0, FOREVER, current.border)
    senders = ", ".join(f"X'{row[0].hex()}'" for row in connection.execute(HELD_SENDERS))
    of_senders = f"sender_id IN ({senders})" if senders else "FALSE"
    held = "TRUE" if is_held(connection, key) else of_senders
    aggregates = Aggregates(held, group.policy.erasable_before(now))
    totals = hidden.in_hot_store(connection, key, former, current, aggregates, is_measured=True)
    everything = visibility.of_group(connection, group, now)._replace(gone_below=0, hidden_before=0)
    found = stretches.stretch(connection, group, 0, everything)
    parts = [part for part, _ in hidden.in_archive(connection, key, former, current)]
    if not (found and parts):
        return GroupImpact(totals)
    stretch = replace(found, parts=parts, deleted_senders=(), include_redacted=True)
    return GroupImpact(totals, ArchiveCount(stretch, current, aggregates))


def kept_of_purge(connection: sqlite3.Connection, group: "GroupRow", before: int) -> int:
    """Return how many commits in the hot store a purge leaves because not all members have fetched them."""
    above = max(group.archived_seq, rules.commits_above(connection, group.group_key))
    row = connection.execute(
        f"SELECT count(*) FROM messages WHERE group_key = ? AND created_at < ? AND {is_kept('?')}",
        (group.group_key, before, above),
    ).fetchone()
    return int(row[0])


def settle(
    connection: sqlite3.Connection,
    old: PolicySettings,
    new: PolicySettings,
    at: int,
    now: int,
    *,
    is_measured: bool = False,
) -> SettingsImpact:
    """Settle the marks of groups whose policy differs between ``old`` and ``new``; return the newly hidden messages.

    ``at``: the last Unix second at which ``old`` was in force. ``now``: the first second of ``new``. ``is_measured``:
    count bytes too, which takes much longer. Changes the store, unless the connection has shadow rows.
    """
    impact, hiding = SettingsImpact(), set[int]()
    hides_differently = []
    for group_key, before, after in marks.changed(connection, new):
        impact.groups += 1
        impact.sooner += after.erasable_before(now) > before.erasable_before(now)
        # Skip groups that hide as before: their messages expired while the server was stopped, whatever the settings.
        if not after.hides_as(before):
            hides_differently.append(group_key)
    former_horizons = hidden.horizons(connection, hides_differently, at)
    marks.settle(connection, new, at)
    for group_key, current in hidden.horizons(connection, hides_differently, now).items():
        former = former_horizons[group_key]
        rises = any(later > earlier for earlier, later in zip(former, current, strict=True))
        if rises and _add_hidden(connection, group_key, former, current, impact, is_measured=is_measured):
            hiding.add(group_key)
    if new.self_destruct_max_age != old.self_destruct_max_age:
        hiding |= _add_too_old(connection, new, now, impact, is_measured=is_measured)
    impact.hiding = len(hiding)
    if impact.hidden:
        impact.total = connection.execute(_TOTAL).fetchone()[0]
    return impact


_TOTAL = """
SELECT ifnull(sum((SELECT count(*) FROM messages
        WHERE messages.group_key = groups.group_key AND sequence_num > archived_seq)), 0)
    + (SELECT ifnull(sum(message_count), 0) FROM archive_parts JOIN groups USING (group_key))
FROM groups
"""


def rehearse(
    connection: sqlite3.Connection, old: PolicySettings, new: PolicySettings, now: int, *, is_measured: bool = False
) -> SettingsImpact:
    """Rehearse a start with ``new`` at the Unix second ``now`` on shadow rows; return the newly hidden messages.

    Afterwards the connection sees groups, tombstones, timers and the server's state as they would be. Nothing is
    written to the database.
    """
    for table in ("groups", "tombstones", "self_destructing", "server_state"):
        connection.execute(f"CREATE TEMP TABLE {table} AS SELECT * FROM main.{table}")
    connection.execute("CREATE UNIQUE INDEX temp.rehearsed_by_number ON self_destructing (group_key, sequence_num)")
    connection.execute("CREATE UNIQUE INDEX temp.rehearsed_by_key ON groups (group_key)")
    connection.execute("CREATE INDEX temp.rehearsed_by_id ON groups (group_id)")
    connection.execute("CREATE INDEX temp.rehearsed_by_policy ON groups (message_expiry_seconds, min_lifetime_seconds)")
    at = connection.execute("SELECT max(last_alive, acted_until) FROM server_state").fetchone()[0]
    return settle(connection, old, new, at, now, is_measured=is_measured)


@contextmanager
def _shadow_rows_of(connection: sqlite3.Connection, group_key: int) -> Iterator[None]:
    """Context manager in which the connection has a shadow row of one group, not deleted, and sees no others."""
    tables = ("groups", "tombstones")
    is_reader = connection.execute("PRAGMA query_only").fetchone()[0]
    connection.execute("PRAGMA query_only = OFF")  # it also forbids temporary tables
    try:
        for table in tables:
            connection.execute(
                f"CREATE TEMP TABLE {table} AS SELECT * FROM main.{table} WHERE group_key = ?", (group_key,)
            )
        yield
    finally:
        for table in tables:
            connection.execute(f"DROP TABLE IF EXISTS temp.{table}")
        connection.execute(f"PRAGMA query_only = {is_reader:d}")


def _add_hidden(
    connection: sqlite3.Connection,
    group_key: int,
    former: Horizon,
    current: Horizon,
    impact: SettingsImpact,
    *,
    is_measured: bool,
) -> bool:
    """Add to ``impact`` the messages of a group that ``current`` newly hides; return whether there are any."""
    where = hidden.sender_condition(connection)
    if connection.execute("SELECT 1 FROM taken_back WHERE group_key = ? AND NOT erased", (group_key,)).fetchone():
        where += f" AND NOT {IS_TAKEN_BACK}"
    hot = hidden.in_hot_store(connection, group_key, former, current, where=where, is_measured=is_measured)
    impact.messages += hot.messages
    impact.body_bytes += hot.body_bytes
    parts = list(hidden.in_archive(connection, group_key, former, current))
    impact.archived += sum(part.message_count for part, _ in parts)
    impact.archived_bytes += sum(part.body_bytes for part, _ in parts)
    impact.is_exact = impact.is_exact and all(is_whole for _, is_whole in parts)
    return bool(hot.messages or parts)


def _add_too_old(
    connection: sqlite3.Connection, new: PolicySettings, now: int, impact: SettingsImpact, *, is_measured: bool
) -> set[int]:
    """Add to ``impact`` the self-destructing messages that become too old to read; return the keys of their groups.

    Call it after all marks are settled: messages hidden by a policy or a mark are already counted, or were hidden.
    """
    rows = connection.execute(
        "SELECT group_key, size, sequence_num, messages.created_at FROM self_destructing"
        " JOIN messages USING (group_key, sequence_num) JOIN groups USING (group_key)"
        f" WHERE NOT ended AND messages.created_at < ? AND {UNREAD}"
        f" AND sender_id NOT IN (SELECT user_id FROM user_tombstones) AND NOT {IS_TAKEN_BACK} ORDER BY group_key",
        (expiry_cutoff(now, new.self_destruct_max_age),),
    ).fetchall()
    hiding = set[int]()
    horizons = hidden.horizons(connection, {row["group_key"] for row in rows}, now)
    for group_key, group_rows in groupby(rows, key=itemgetter("group_key")):
        horizon = horizons[group_key]
        sizes = [size for _, size, number, second in group_rows if number > horizon.gone and second >= horizon.before]
        if sizes:
            hiding.add(group_key)
        impact.messages += len(sizes)
        impact.body_bytes += sum(sizes) if is_measured else 0
    return hiding


def unknown_groups(connection: sqlite3.Connection, settings: PolicySettings) -> list[str]:
    """Return the group ids in overrides that do not exist, as text."""
    return [
        group_id
        for group_id, raw in zip(settings.groups, settings.overrides, strict=True)
        if not connection.execute("SELECT 1 FROM groups WHERE group_id = ?", (raw,)).fetchone()
    ]
