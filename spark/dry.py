"""Dry runs: what a run would delete from the hot store, also after a start with other settings. Needs no Java."""

import sqlite3
from collections import Counter
from dataclasses import dataclass
from functools import partial

from conclave.retention.jobs import ALL
from conclave.retention.resolve import PolicySettings
from conclave.store import consequences
from spark import apply, due, sql_engine
from spark.hot import Hot
from spark.plan_types import Plan


@dataclass(frozen=True)
class Planned:
    """What a dry run in the hot store finds: the plan, the keys of the groups with something due, rows by rule.

    ``held``: what legal holds keep, see ``due.held_back``.
    """

    plan: Plan
    groups: set[int]
    counts: Counter[str]
    held: int


def after_a_start(hot: Hot, former: PolicySettings) -> Hot:
    """Return the same store as it would be after a start with the settings of ``hot`` in the place of ``former``."""
    prepare = partial(consequences.rehearse, old=former, new=hot.settings, now=hot.now)
    return hot.seen_through(prepare)


def plan(connection: sqlite3.Connection, hot: Hot) -> Planned:
    """Plan a run over everything from the snapshot of ``connection``, and count what it would delete."""
    return count(connection, hot, sql_engine.plan_snapshot(connection, hot.settings, hot.now, ALL))


def count(connection: sqlite3.Connection, hot: Hot, made: Plan) -> Planned:
    """Count what a plan would delete."""
    groups = due.groups(connection, made, hot.settings)
    counts = apply.count_plan(connection, made, hot.settings)
    held = due.held_back(connection, hot.settings, hot.now, made.risen)
    return Planned(made, groups, counts, held)
