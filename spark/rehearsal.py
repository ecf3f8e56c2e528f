"""Dry runs: count the rows that a run would delete, under the settings in force or under other settings."""

import contextlib
import json
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from conclave.archive.snapshot import TRIES
from conclave.clock import Clock
from conclave.clock.steady import SteadyClock
from conclave.retention import due, rehearsal
from conclave.retention.jobs import ALL, Scope
from conclave.retention.plan import Plan, make_plan
from conclave.retention.rehearsal import SettingsImpact
from conclave.retention.resolve import PolicySettings
from conclave.retention.rules import INVITES, SESSIONS
from conclave.store.engine import schema, sqlite
from conclave.store.resources import state
from spark import apply, readiness
from spark.archive import expiry_plan
from spark.environment import RunEnvironment
from spark.hot_store import ArchiveRunError, Hot
from spark.report import Report


@dataclass(frozen=True)
class HotRehearsal:
    """The result of a dry run on the hot store."""

    plan: Plan
    groups: set[int]
    """The keys of the groups that change."""
    counts: Counter[str]
    """Rows by rule."""


def of_run(connection: sqlite3.Connection, hot: Hot, plan: Plan | None = None) -> HotRehearsal:
    """Rehearse a run with ``plan``; None: a full run, planned here without Java."""
    plan = plan or make_plan(connection, hot.settings, hot.now, ALL)
    groups, counts = due.groups(connection, plan), apply.count_plan(connection, plan)
    return HotRehearsal(plan, groups, counts)


def after_a_start(hot: Hot, former: PolicySettings) -> Hot:
    """Return the store with shadow rows, as after changing the settings from ``former`` to those of ``hot``."""
    return hot.with_prepare(partial(rehearsal.rehearse, old=former, new=hot.settings, now=hot.now))


@dataclass(frozen=True)
class Erasure:
    """The messages that a full run would erase."""

    groups: int
    counts: dict[str, int]
    """By rule, in the database."""
    body_bytes: int
    """The bytes of these messages."""
    archived: int
    """The messages in the archive, by its index."""
    archived_bytes: int
    is_exact: bool
    """False if the numbers of the archive are upper bounds."""


@dataclass(frozen=True)
class Comparison:
    """The effect of settings on a store."""

    differing: list[str]
    """The names of the settings that differ from those in force."""
    clock_fault: str
    """The fault of the clock, or ""."""
    unknown_groups: list[str]
    """The group ids in overrides that do not exist."""
    change: SettingsImpact
    now_erased: Erasure
    """The messages that a run would erase under the settings in force."""
    then_erased: Erasure
    """The messages that a run would erase after a start with the new settings."""


def compare(path: Path, policy: PolicySettings, clock: Clock) -> Comparison | None:
    """Return the effect of ``policy`` on the store at ``path``; None if no server has used it. Raises StoreError."""
    schema.require_current(path)
    steady = SteadyClock(clock)
    with closing(sqlite.connect(path, readonly=True)) as connection:
        connection.execute("BEGIN")
        former = state.stored_policy(connection)
        if former is None:
            return None
        steady.resume(state.clock_state(connection).floor, None)
        fault = state.check_clock(connection, steady.read())
        now = steady.now()
        now_erased = _erasure(connection, Hot(path, former, now))
        change = rehearsal.rehearse(connection, former, policy, now, is_measured=True)
        then_erased = _erasure(connection, Hot(path, policy, now))
        unknown = rehearsal.unknown_groups(connection, policy)
    return Comparison(policy.differing(former), fault, unknown, change, now_erased, then_erased)


def _erasure(connection: sqlite3.Connection, hot: Hot) -> Erasure:
    rehearsed = of_run(connection, hot)
    archived = expiry_plan.make_plan(connection, hot, ALL, rehearsed.plan.risen)
    connection.execute("DROP TABLE temp.archive_marks")
    keys = {part.key for part in archived.parts}
    messages, body_bytes = connection.execute(_ARCHIVED, (json.dumps(sorted(keys)),)).fetchone()
    return Erasure(
        len(rehearsed.groups | {group_key for group_key, _, _ in keys}),
        {rule: count for rule, count in rehearsed.counts.items() if rule not in (SESSIONS, INVITES)},
        _body_bytes(connection, rehearsed.plan),
        messages,
        body_bytes,
        is_exact=not archived.partial,
    )


_ARCHIVED = """
SELECT ifnull(sum(message_count), 0), ifnull(sum(body_bytes), 0) FROM archive_parts
WHERE (group_key, lifetime, span) IN (SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?))
"""


def _body_bytes(connection: sqlite3.Connection, plan: Plan) -> int:
    """Return the bytes of all bodies that a plan deletes, each counted once."""
    due.list_due_ids(connection, plan)
    total: int = connection.execute(
        "SELECT ifnull(sum(size), 0) FROM temp.due_ids CROSS JOIN messages"
        " ON group_key = due_ids.message_id >> 40 AND sequence_num = due_ids.message_id & 0xFFFFFFFFFF"
    ).fetchone()[0]
    connection.execute("DROP TABLE temp.due_ids")
    return total


def rehearse(engine: RunEnvironment, scope: Scope = ALL) -> Report:
    """Return the report of a dry run. Changes nothing. Raises CleanupError or ArchiveRunError.

    If this configuration differs from the settings in force, the dry run assumes that the server was restarted with it.
    Tries again if an active run has replaced files of the archive.
    """
    for _ in range(TRIES - 1):
        with contextlib.suppress(ArchiveRunError):
            return _planned(engine, scope)
    return _planned(engine, scope)


def _planned(engine: RunEnvironment, scope: Scope) -> Report:
    with readiness.ready(engine, lambda _: None, writing=False) as stored:
        settings = engine.config.policy
        planned = Report(engine.config.cleanup.engine, engine.clock.now(), differing=settings.differing(stored))
        hot = readiness.open_hot(engine, settings, planned.started_at)
        if planned.differing:
            hot = after_a_start(hot, stored)
            rehearsed = hot.read(of_run, hot)
        else:
            engine.get_ready(settings, scope, planned.started_at)
            plan = engine.make_plan(settings, planned.started_at, scope)
            rehearsed = hot.read(of_run, hot, plan)
        planned.groups_touched, planned.counts = len(rehearsed.groups), rehearsed.counts
        planned.held = engine.count_held(hot, rehearsed.plan.risen)
        with closing(sqlite.connect(engine.path, readonly=True)) as connection:
            planned.error = state.check_clock(connection, engine.clock.read())
        if archive := engine.find_archive_work(hot, ALL, rehearsed.plan.risen):
            archive.count(planned, rehearsed.groups, rehearsed.plan)
        planned.finished_at = engine.clock.now()
        return planned
