"""Rehearses runs: what one would erase, by the policy in force or after a start with other settings."""

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
from spark.hot_store import ArchiveFault, Hot
from spark.report import Report


@dataclass(frozen=True)
class Planned:
    """What a run would delete from the hot store."""

    plan: Plan
    groups: set[int]
    """The keys of the groups in which something is due."""
    counts: Counter[str]
    """Rows by rule."""


def of_run(connection: sqlite3.Connection, hot: Hot, made: Plan | None = None) -> Planned:
    """Rehearse a run that carries out the plan ``made``; None: one over everything, planned here without Java."""
    plan = made or make_plan(connection, hot.settings, hot.now, ALL)
    groups, counts = due.groups(connection, plan), apply.count_plan(connection, plan)
    return Planned(plan, groups, counts)


def after_a_start(hot: Hot, former: PolicySettings) -> Hot:
    """Return the same store with shadow rows: after a start with the settings of ``hot`` in the place of ``former``."""
    return hot.with_prepare(partial(rehearsal.rehearse, old=former, new=hot.settings, now=hot.now))


@dataclass(frozen=True)
class Erasure:
    """What a run over everything would erase: messages, without sessions and invites."""

    groups: int
    counts: dict[str, int]
    """By rule, in the database."""
    body_bytes: int
    """All of these together."""
    archived: int
    """In the archive, by its index."""
    archived_bytes: int
    is_exact: bool
    """False if those of the archive are at most so many."""


@dataclass(frozen=True)
class Comparison:
    """What settings would do to a store now."""

    differing: list[str]
    """The names of the settings that are not those in force."""
    clock_fault: str
    """What is wrong with the clock, "" for nothing."""
    unknown_groups: list[str]
    """The ids of groups that overrides name and that do not exist."""
    change: SettingsImpact
    now_erased: Erasure
    """What a run under the settings in force would erase."""
    then_erased: Erasure
    """What one would erase after a start with the other ones."""


def compare(path: Path, policy: PolicySettings, clock: Clock) -> Comparison | None:
    """Return what ``policy`` would do to the store at ``path``; None if no server has used it. Raises StoreError."""
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
    found = of_run(connection, hot)
    archived = expiry_plan.make_plan(connection, hot, ALL, found.plan.risen)
    connection.execute("DROP TABLE temp.archive_marks")
    keys = {part.key for part in archived.parts}
    messages, body_bytes = connection.execute(_ARCHIVED, (json.dumps(sorted(keys)),)).fetchone()
    return Erasure(
        len(found.groups | {group_key for group_key, _, _ in keys}),
        {rule: count for rule, count in found.counts.items() if rule not in (SESSIONS, INVITES)},
        _body_bytes(connection, found.plan),
        messages,
        body_bytes,
        is_exact=not archived.partial,
    )


_ARCHIVED = """
SELECT ifnull(sum(message_count), 0), ifnull(sum(body_bytes), 0) FROM archive_parts
WHERE (group_key, lifetime, span) IN (SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?))
"""


def _body_bytes(connection: sqlite3.Connection, made: Plan) -> int:
    """Return the bytes of all bodies that a plan lets go; each counts once, also if several rules name it."""
    due.list_due_ids(connection, made)
    total: int = connection.execute(
        "SELECT ifnull(sum(size), 0) FROM temp.due_ids CROSS JOIN messages"
        " ON group_key = due_ids.message_id >> 40 AND sequence_num = due_ids.message_id & 0xFFFFFFFFFF"
    ).fetchone()[0]
    connection.execute("DROP TABLE temp.due_ids")
    return total


def rehearse(engine: RunEnvironment, scope: Scope = ALL) -> Report:
    """Return what a run would delete; changes nothing. Raises CleanupError or ArchiveError.

    If the policy of this configuration is not the one in force: what a run would delete after a start with it. A run
    may be under way, which replaces files of the archive while they are counted: then it is tried again.
    """
    for _ in range(TRIES - 1):
        with contextlib.suppress(ArchiveFault):
            return _planned(engine, scope)
    return _planned(engine, scope)


def _planned(engine: RunEnvironment, scope: Scope) -> Report:
    with readiness.ready(engine, lambda _: None, writing=False) as stored:
        settings = engine.config.policy
        planned = Report(engine.config.cleanup.engine, engine.clock.now(), differing=settings.differing(stored))
        hot = readiness.open_hot(engine, settings, planned.started_at)
        if planned.differing:
            hot = after_a_start(hot, stored)
            found = hot.read(of_run, hot)
        else:
            engine.get_ready(settings, scope, planned.started_at)
            plan = engine.make_plan(settings, planned.started_at, scope)
            found = hot.read(of_run, hot, plan)
        planned.groups_touched, planned.counts = len(found.groups), found.counts
        planned.held = engine.count_held(hot, found.plan.risen)
        with closing(sqlite.connect(engine.path, readonly=True)) as connection:
            planned.error = state.check_clock(connection, engine.clock.read())
        if archive := engine.find_archive_work(hot, ALL, found.plan.risen):
            archive.count(planned, found.groups, found.plan)
        planned.finished_at = engine.clock.now()
        return planned
