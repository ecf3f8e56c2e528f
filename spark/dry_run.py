"""A dry run: what a run would delete. Nothing is changed."""

import contextlib
from contextlib import closing

from conclave.archive.consistency import TRIES
from conclave.retention.jobs import ALL, Scope
from conclave.store.engine import sqlite
from conclave.store.resources import state
from spark import readiness, rehearsal
from spark.environment import RunEnvironment
from spark.hot_store import ArchiveError
from spark.report import Report


def rehearse(engine: RunEnvironment, scope: Scope = ALL) -> Report:
    """Return what a run would delete; changes nothing. Raises CleanupError or ArchiveError.

    If the policy of this configuration is not the one in force: what a run would delete after a start with it. A run
    may be under way, which replaces files of the archive while they are counted: then it is tried again.
    """
    for _ in range(TRIES - 1):
        with contextlib.suppress(ArchiveError):
            return _planned(engine, scope)
    return _planned(engine, scope)


def _planned(engine: RunEnvironment, scope: Scope) -> Report:
    with readiness.ready(engine, lambda _: None, writing=False) as stored:
        settings = engine.config.policy
        planned = Report(engine.config.cleanup.engine, engine.clock.now(), differing=settings.differing(stored))
        hot = readiness.open_hot(engine, settings, planned.started_at)
        if planned.differing:
            hot = rehearsal.after_a_start(hot, stored)
            found = hot.read(rehearsal.of_run, hot)
        else:
            engine.get_ready(settings, scope, planned.started_at)
            plan = engine.make_plan(settings, planned.started_at, scope)
            found = hot.read(rehearsal.of_run, hot, plan)
        planned.groups_touched, planned.counts = len(found.groups), found.counts
        planned.held = engine.count_held(hot, found.plan.risen)
        with closing(sqlite.connect(engine.path, readonly=True)) as connection:
            planned.error = state.look_at_clock(connection, engine.clock.read())
        if archive := engine.find_archive_work(hot, ALL, found.plan.risen):
            archive.count(planned, found.groups, found.plan)
        planned.finished_at = engine.clock.now()
        return planned
