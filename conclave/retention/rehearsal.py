"""The rehearsal: what another policy, or a purge, would hide. All that says what would go asks here.

Shadow rows are copies of the rows by which messages are judged. They are in temporary tables of the same names, which
only their connection sees, also one that only reads. On them the same is done as would be done in earnest: what admins
set is written, and ``marks.settle`` settles the marks and writes the policies. The horizons of a group, of before and
of then, tell which of its messages become hidden; ``hidden.py`` counts these.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from conclave.retention import hidden, limits, marks, stretches, visibility
from conclave.retention.hidden import NOTHING, Amount, Horizon, Sought, Sums
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
class Rehearsed:
    """What would be hidden of a group."""

    sure: Amount
    """What is known without reading the archive."""
    sought: Sought | None = None
    """What is to be counted there; None: nothing."""
    at_most: Amount = NOTHING
    """What would be sought there, if it were all that the parts have."""


@dataclass
class Change:
    """What other settings do at once."""

    groups: int = 0
    """How many groups have another policy."""
    sooner: int = 0
    """In how many of them messages may be erased sooner than before."""
    hiding: int = 0
    """In how many groups messages become hidden."""
    messages: int = 0
    """How many become hidden in the database."""
    body_bytes: int = 0
    """How many bytes these have, if they were measured."""
    archived: int = 0
    """How many become hidden in the archive."""
    archived_bytes: int = 0
    is_exact: bool = True
    """False if those of the archive are at most so many."""
    total: int = 0
    """All messages of living groups; 0 if none becomes hidden."""

    @property
    def hidden(self) -> int:
        """How many messages become hidden, at most."""
        return self.messages + self.archived

    @property
    def is_large(self) -> bool:
        """Whether so much becomes hidden that an operator should have looked."""
        return self.hidden > LARGE_SHARE * self.total


def of_change(
    connection: sqlite3.Connection, group: "GroupRow", changed: "GroupRow", settings: PolicySettings, now: int
) -> Rehearsed:
    """Rehearse that ``group`` becomes ``changed`` at the Unix second ``now``, and that a run follows.

    What is served now and is not then counts, also if a legal hold or a least lifetime keeps its bytes. It takes as
    long as it takes to pass over as many entries of an index as messages become hidden. Only if the index does not tell
    all, each message is looked at.
    """
    key = group.group_key
    own = changed.message_expiry_seconds, changed.min_lifetime_seconds
    if settings.of_group(group.group_id, *own).hides_as(group.policy):
        return Rehearsed(NOTHING)
    former = hidden.horizons(connection, [key], now, "gone_below")[key]
    with _shadow_rows_of(connection, key):
        connection.execute("UPDATE temp.groups SET message_expiry_seconds = ?, min_lifetime_seconds = ?", own)
        marks.settle(connection, settings, now, key)
        current = hidden.horizons(connection, [key], now)[key]
    where = hidden.served_of(connection)
    if group.self_destructs:
        where += f" AND NOT {IS_REDACTED}"
    if group.taken_back_count:
        where += f" AND NOT {IS_TAKEN_BACK}"
    sure = hidden.in_hot_store(connection, key, former, current, where=where, now=now)
    partial = set[Part]()
    for part, is_whole in hidden.in_archive(connection, key, former, current):
        if is_whole:
            sure += _all_of(part)
        else:
            partial.add(part)
    found = stretches.stretch(connection, group, 0, visibility.of_group(connection, group, now)) if partial else None
    parts = [part for part in found.parts if part in partial] if found else []
    if not (found and parts):
        return Rehearsed(sure)
    at_most = sum((replace(_all_of(part), oldest=max(part.oldest, former.before)) for part in parts), NOTHING)
    return Rehearsed(sure, Sought(replace(found, parts=parts), current, hidden.ALL), at_most)


def _all_of(part: Part) -> Amount:
    return Amount(part.message_count, part.body_bytes, part.oldest, part.newest)


def of_purge(connection: sqlite3.Connection, group: "GroupRow", before: int, now: int) -> Rehearsed:
    """Rehearse at ``now`` a purge of all that was created before the Unix second ``before``, hidden already or not.

    Kept commits do not count. What the archive has is all sought there: its index does not say what is held.
    """
    key = group.group_key
    current = hidden.horizons(connection, [key], now)[key]._replace(gone=0, before=before)
    former = Horizon(0, 0, FOREVER, current.border)
    senders = ", ".join(f"X'{row[0].hex()}'" for row in connection.execute(HELD_SENDERS))
    of_senders = f"sender_id IN ({senders})" if senders else "FALSE"
    sums = Sums("TRUE" if is_held(connection, key) else of_senders, group.policy.erasable_before(now))
    sure = hidden.in_hot_store(connection, key, former, current, sums, is_measured=True)
    sight = visibility.of_group(connection, group, now)._replace(gone_below=0, hidden_before=0)
    found = stretches.stretch(connection, group, 0, sight)
    parts = [part for part, _ in hidden.in_archive(connection, key, former, current)]
    if not (found and parts):
        return Rehearsed(sure)
    return Rehearsed(
        sure, Sought(replace(found, parts=parts, deleted_senders=(), include_redacted=True), current, sums)
    )


def kept_of_purge(connection: sqlite3.Connection, group: "GroupRow", before: int) -> int:
    """Return how many commits in the hot store a purge leaves, since members who have not fetched them hold them."""
    above = max(group.archived_seq, limits.commits_above(connection, group.group_key))
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
) -> Change:
    """Settle the marks of every group whose policy differs between ``old`` and ``new``; return what that hides.

    ``at``: the last Unix second at which ``old`` was in force. ``now``: the first of ``new``. ``is_measured``: bytes
    are counted too; that takes much longer. It is done in earnest, unless the connection has shadow rows.
    """
    change, hiding = Change(), set[int]()
    hides_otherwise = []
    for group_key, before, after in marks.changed(connection, new):
        change.groups += 1
        change.sooner += after.erasable_before(now) > before.erasable_before(now)
        # What expired while the server was stopped, and would have under the old settings too, is no consequence.
        if not after.hides_as(before):
            hides_otherwise.append(group_key)
    formerly = hidden.horizons(connection, hides_otherwise, at)
    marks.settle(connection, new, at)
    for group_key, current in hidden.horizons(connection, hides_otherwise, now).items():
        former = formerly[group_key]
        rises = any(later > earlier for earlier, later in zip(former, current, strict=True))
        if rises and _add_hidden(connection, group_key, former, current, change, is_measured=is_measured):
            hiding.add(group_key)
    if new.self_destruct_max_age != old.self_destruct_max_age:
        hiding |= _add_too_old(connection, new, now, change, is_measured=is_measured)
    change.hiding = len(hiding)
    if change.hidden:
        change.total = connection.execute(_TOTAL).fetchone()[0]
    return change


_TOTAL = """
SELECT ifnull(sum((SELECT count(*) FROM messages
        WHERE messages.group_key = groups.group_key AND sequence_num > archived_seq)), 0)
    + (SELECT ifnull(sum(message_count), 0) FROM archive_parts JOIN groups USING (group_key))
FROM groups
"""


def rehearse(
    connection: sqlite3.Connection, old: PolicySettings, new: PolicySettings, now: int, *, is_measured: bool = False
) -> Change:
    """Do as a start with ``new`` at the Unix second ``now`` would, on shadow rows; return what it hides.

    From here on the connection sees groups, tombstones, timers and the server's state as they would be. Nothing is
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
    """Let the connection have a shadow row of one living group, and see no other group, while the block lasts."""
    tables = ("groups", "tombstones")
    is_reader = connection.execute("PRAGMA query_only").fetchone()[0]
    connection.execute("PRAGMA query_only = OFF")  # it would forbid temporary tables too
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
    change: Change,
    *,
    is_measured: bool,
) -> bool:
    """Add to ``change`` what of a group is hidden by ``current`` and was not by ``former``; tell whether any is."""
    where = hidden.served_of(connection)
    if connection.execute("SELECT 1 FROM taken_back WHERE group_key = ? AND NOT erased", (group_key,)).fetchone():
        where += f" AND NOT {IS_TAKEN_BACK}"
    hot = hidden.in_hot_store(connection, group_key, former, current, where=where, is_measured=is_measured)
    change.messages += hot.messages
    change.body_bytes += hot.body_bytes
    parts = list(hidden.in_archive(connection, group_key, former, current))
    change.archived += sum(part.message_count for part, _ in parts)
    change.archived_bytes += sum(part.body_bytes for part, _ in parts)
    change.is_exact = change.is_exact and all(is_whole for _, is_whole in parts)
    return bool(hot.messages or parts)


def _add_too_old(
    connection: sqlite3.Connection, new: PolicySettings, now: int, change: Change, *, is_measured: bool
) -> set[int]:
    """Add to ``change`` the self-destructing messages that are too old for a member from now on; return their groups.

    Call it when all marks are settled: what a policy or a mark hides, the former or the new one, is counted already, or
    is no consequence.
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
    for group_key, of_group in groupby(rows, key=itemgetter("group_key")):
        horizon = horizons[group_key]
        found = [size for _, size, number, second in of_group if number > horizon.gone and second >= horizon.before]
        if found:
            hiding.add(group_key)
        change.messages += len(found)
        change.body_bytes += sum(found) if is_measured else 0
    return hiding


def unknown_groups(connection: sqlite3.Connection, settings: PolicySettings) -> list[str]:
    """Return the ids of the groups that overrides name and that do not exist, as text."""
    return [
        group_id
        for group_id, raw in zip(settings.groups, settings.overrides, strict=True)
        if not connection.execute("SELECT 1 FROM groups WHERE group_id = ?", (raw,)).fetchone()
    ]
