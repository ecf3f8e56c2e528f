"""The end of a run: receipts of what is erased, records that are old enough to go, work files, the history."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial

from conclave.failpoints import reach
from conclave.retention.jobs import ALL, Scope
from conclave.retention.resolve import PolicySettings
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError
from conclave.store.engine.sqlite import Step
from conclave.store.ledger import book
from conclave.store.resources import audit, receipts, registration_tokens, send_ids, state, taken_back
from conclave.store.views import overdue, runs
from conclave.store.views.runs import Run
from spark import readiness
from spark.environment import RunEnvironment
from spark.hot_store import ArchiveError, Hot
from spark.report import Report
from spark.work_folder import remove_dead


def write_receipts(
    engine: RunEnvironment, settings: PolicySettings, done: Report, scope: Scope, *, seals: bool
) -> None:
    """Make receipts of what was erased, by this run or by one that did not get as far as this; keep house.

    ``seals``: the keys of what was erased are lost; otherwise its receipts are left to the run that loses them.
    The report names what failed. While the clock is wrong nothing is done, since receipts say when they were made.
    """
    now, kept = done.started_at, engine.config.retention

    def steps(connection: sqlite3.Connection) -> Iterator[Step]:
        if not state.standing(connection).fault:
            if seals:
                yield partial(receipts.seal, connection, now, done.job)
            if scope.keeps_house:
                yield partial(receipts.prune, connection, now - kept.keep_receipts)
                yield partial(taken_back.prune, connection, now - kept.keep_receipts)
                yield partial(audit.prune, connection, now - kept.keep_audit)
                yield partial(registration_tokens.prune, connection, now)
                yield partial(send_ids.prune, connection, now - send_ids.KEPT_SECONDS)

    hot = readiness.open_hot(engine, settings, now)
    if scope.keeps_house:
        _drop_old_of_ledger(engine, settings, hot, done)
    try:
        hot.write_steps(steps)
        done.held = engine.count_held(hot)
        if done.error or scope != ALL:  # a run over everything that went well leaves nothing; the server looks besides
            left = hot.read(overdue.worst, now)
            done.overdue_groups, done.overdue_seconds = left.groups, left.seconds
    except (StoreError, sqlite3.Error) as error:
        done.error = done.error or f"receipts: {error}"
    except ArchiveError as error:
        done.error = done.error or f"what legal holds keep could not be counted: {error}"


def _drop_old_of_ledger(engine: RunEnvironment, settings: PolicySettings, hot: Hot, done: Report) -> None:
    """Drop old entries. A wrong clock would call young ones old, and what they tell of would come back by a restore."""
    if engine.is_hot_only:
        return
    try:
        if hot.read(state.standing).fault:
            return
        now = done.started_at
        keep, max_age = book.KEPT_SECONDS, settings.self_destruct_max_age
        book.drop_old(engine.config.ledger_path, now - keep, now - max_age, now)
    except (StoreError, sqlite3.Error) as error:
        done.error = done.error or f"ledger: {error}"


def empty_work(engine: RunEnvironment, done: Report) -> None:
    """Remove the work files of this run, and those of processes that have ended meanwhile.

    The report names what could not be removed.
    """
    try:
        engine.empty_work()
        left = remove_dead(engine.config.work)
    except OSError as error:
        left = [str(error)]
    done.error = done.error or "; ".join(left)


def store(engine: RunEnvironment, done: Report) -> None:
    """Add the run to the history."""
    reach("report.before")
    with closing(sqlite.connect(engine.path)) as connection, sqlite.write_transaction(connection):
        runs.add(connection, Run(**done.to_mapping()))
    reach("report.stored")
