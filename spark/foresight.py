"""Foresight: what other settings would hide and erase. Told from one snapshot of the store; nothing is touched."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from conclave.clock import Clock
from conclave.retention.jobs import ALL
from conclave.retention.resolve import PolicySettings
from conclave.steady_clock import SteadyClock
from conclave.store import bodies, consequences, schema, sqlite, state
from conclave.store.archive.erasures import Key
from conclave.store.consequences import MEASURED, Change
from spark import dry, due
from spark.archive import expiry
from spark.hot import Hot
from spark.plan_types import Plan
from spark.rules import INVITES, SESSIONS


@dataclass(frozen=True)
class Erasure:
    """What a run over everything would erase: messages, without sessions and invites.

    ``counts``: by rule, in the database, ``body_bytes`` together. ``archived``: in the archive, by its index, with
    ``archived_bytes``; at most so many if not ``is_exact``.
    """

    groups: int
    counts: dict[str, int]
    body_bytes: int
    archived: int
    archived_bytes: int
    is_exact: bool


@dataclass(frozen=True)
class Foresight:
    """What settings would do to a store now.

    ``differing``: the names of the settings that are not those in force. ``clock_fault``: what is wrong with the clock,
    "" for nothing. ``unknown_groups``: the ids that overrides name. ``now_erased``: what a run under the settings in
    force would erase. ``then_erased``: what it would after a start with the other ones.
    """

    differing: list[str]
    clock_fault: str
    unknown_groups: list[str]
    change: Change
    now_erased: Erasure
    then_erased: Erasure


def foresee(path: Path, policy: PolicySettings, clock: Clock) -> Foresight | None:
    """Tell what ``policy`` would do to the store at ``path``; None if it has not been served yet. Raises StoreError."""
    schema.require_current(path)
    steady = SteadyClock(clock)
    with closing(sqlite.connect(path, readonly=True)) as connection:
        connection.execute("BEGIN")
        former = state.stored_policy(connection)
        if former is None:
            return None
        steady.resume(state.standing(connection).floor, None)
        fault = state.look_at_clock(connection, steady.read())
        now = steady.now()
        now_erased = _erasure(connection, Hot(path, former, now))
        change = consequences.rehearse(connection, former, policy, now, is_measured=True)
        then_erased = _erasure(connection, Hot(path, policy, now))
        unknown = consequences.unknown_groups(connection, policy)
    return Foresight(policy.differing(former), fault, unknown, change, now_erased, then_erased)


def _erasure(connection: sqlite3.Connection, hot: Hot) -> Erasure:
    found = dry.plan(connection, hot)
    archived = expiry.make_plan(connection, hot, ALL, found.plan.risen)
    counts = {rule: count for rule, count in found.counts.items() if rule not in (SESSIONS, INVITES)}
    keys = {key for key, erased in archived.dropped.items() if erased.rule != expiry.RESTORED}
    keys |= {key for key in archived.partial if not archived.is_restored(key)}
    amounts = [_amount(connection, key) for key in sorted(keys)]
    due_in_archive = {group_key for group_key, _, _ in keys}
    erased = Erasure(
        len(found.groups | due_in_archive),
        counts,
        _body_bytes(connection, found.plan, hot.settings),
        sum(messages for messages, _ in amounts),
        sum(body_bytes for _, body_bytes in amounts),
        not keys.intersection(archived.partial),
    )
    connection.execute("DROP TABLE temp.archive_marks")
    return erased


def _amount(connection: sqlite3.Connection, key: Key) -> tuple[int, int]:
    row = connection.execute(
        "SELECT message_count, body_bytes FROM archive_parts WHERE group_key = ? AND lifetime = ? AND span = ?", key
    ).fetchone()
    return row[0], row[1]


def _body_bytes(connection: sqlite3.Connection, made: Plan, settings: PolicySettings) -> int:
    """Return the bytes of all bodies that a plan lets go; each counts once, whatever number of rules names it."""
    connection.execute("CREATE TEMP TABLE let_go (message_id INTEGER PRIMARY KEY)")
    for each in due.of_plan(connection, made, settings):
        query, values = each.select("message_id")
        connection.execute(f"INSERT OR IGNORE INTO temp.let_go {query}", values)
    total, last = 0, 0
    while rows := connection.execute(
        "SELECT message_id FROM temp.let_go WHERE message_id > ? ORDER BY message_id LIMIT ?", (last, MEASURED)
    ).fetchall():
        last = rows[-1][0]
        total += bodies.total_size(connection, [row[0] for row in rows])
    connection.execute("DROP TABLE temp.let_go")
    return total
