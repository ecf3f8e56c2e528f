"""Does one cleanup run: checks, lock, clock, plan, apply, archive, keys, receipts, report."""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

from conclave.failpoints import reach
from conclave.logs.setup import get_logger
from conclave.retention import due
from conclave.retention.jobs import ALL, Scope
from conclave.retention.resolve import PolicySettings
from conclave.store import clock_repair
from conclave.store.engine import schema, sqlite
from conclave.store.engine.faults import StoreError, is_disk_error
from conclave.store.ledger.changes import drain
from conclave.store.resources import state
from conclave.system.worker_protocol import WorkerState
from spark import apply, ending, readiness
from spark.ending import Costs
from spark.environment import RunEnvironment, Tell
from spark.hot_store import Hot, Pacer, RunTooLongError, empty_wal
from spark.report import Report

log = get_logger(__name__)

Progress = Callable[[int, int], None]
"""Called repeatedly with the number of deleted rows, and the expected total."""


def clean_up(
    engine: RunEnvironment,
    *,
    scope: Scope = ALL,
    accept_clock: bool = False,
    progress: Progress | None = None,
    tell: Tell = lambda _: None,
) -> Report:
    """Do one run, add it to the history, and return its report. Waits for other runs.

    ``accept_clock``: accept the clock as correct, and replace future timestamps with the current time. Errors of the
    run are in its report. Raises CleanupError if the run could not start, or could not be recorded.
    """
    with readiness.ready(engine, partial(_get_ready, engine, scope, tell)) as settings, engine.only_run(tell):
        tell(WorkerState.BEGAN)
        done, costs = Report(engine.config.cleanup.engine, engine.clock.now(), scope.name), Costs(engine)
        try:
            if accept_clock:
                _accept_clock(engine, readiness.open_hot(engine, settings, done.started_at))
            done.started_at = readiness.require_clock(engine)
            with engine.in_time():
                _carry_out(engine, settings, done, progress, scope)
        except readiness.EXPECTED as error:
            done.error = f"{type(error).__name__}: {error}"
        except Exception as error:
            if not is_disk_error(error) and not engine.broken_off:
                log.exception("cleanup_failed", engine=done.engine)
            done.error = f"{type(error).__name__}: {error}"
        except BaseException:
            engine.kill_spark()  # before another process gets the lock: Java may still be writing
            raise
        if done.error and engine.broken_off:
            done.error = f"{RunTooLongError.__name__}: {engine.broken_off}"
        hot = readiness.open_hot(engine, settings, done.started_at)
        are_destroyed = ending.destroy_keys(engine, hot, done)
        ending.write_receipts(engine, settings, done, scope, seals=are_destroyed)
        ending.empty_work(engine, done)
        done.finished_at = engine.clock.now()
        costs.note(done)
        ending.store(engine, done)
        return done


def _get_ready(
    engine: RunEnvironment, scope: Scope, tell: Tell, settings: PolicySettings, *, in_seconds: float = 0.0
) -> bool:
    """Start Spark if the run will need it, and the clock is right."""
    with closing(sqlite.connect(engine.path, readonly=True)) as connection:
        if state.check_clock(connection, engine.clock.read()):
            return False
    return engine.get_ready(settings, scope, engine.clock.now() + round(in_seconds), tell)


def get_ready_ahead(engine: RunEnvironment, scope: Scope, in_seconds: float, tell: Tell) -> bool:
    """Start Spark if a run after ``in_seconds`` will need it; return whether it will.

    Raises any of NOT_BEGUN.
    """
    schema.require_current(engine.path, writing=False)
    return _get_ready(engine, scope, tell, readiness.settings_in_force(engine, writing=False), in_seconds=in_seconds)


def _accept_clock(engine: RunEnvironment, hot: Hot) -> None:
    """Accept the clock as correct, after moving groups with future times back from the archive.

    If the move fails, the clock is not accepted. The operator can try again.
    """
    if archive := engine.archive(hot):
        archive.restore_ahead(engine.clock.read().wall, readiness.spare_bytes(engine))
    hot.write(clock_repair.accept, engine.clock, hot.settings.token_ttl_seconds)


def _carry_out(
    engine: RunEnvironment, settings: PolicySettings, done: Report, progress: Progress | None, scope: Scope
) -> None:
    """Plan, apply the plan, and do the archive part. Adds the results to ``done``."""
    deadline = time.monotonic() + engine.config.cleanup.max_run_time
    plan = engine.make_plan(settings, done.started_at, scope)
    reach("plan.made")
    size = engine.path.stat().st_size
    hot = readiness.open_hot(engine, settings, done.started_at, deadline)
    try:
        with _emptying_wal(hot) as connection:
            groups = due.groups(connection, plan)
            done.groups_touched = len(groups)
            total = apply.count_plan(connection, plan).total() if progress else 0
            tell = (lambda: progress(done.counts.total(), total)) if progress else (lambda: None)
            pacer = Pacer(connection, deadline, tell, lambda: hot.require(connection))
            apply.apply_plan(pacer, plan, settings, done.counts, partial(_write_ledger, engine, done))
            apply.return_free_pages(pacer)
        if archive := engine.find_archive_work(hot, scope):
            try:
                archive.run(done, groups, scope, partial(ending.destroy_keys, engine, hot.without_deadline(), done))
            finally:
                with _emptying_wal(hot) as connection:
                    apply.return_free_pages(Pacer(connection, deadline, require=lambda: hot.require(connection)))
    finally:
        done.bytes_returned = max(0, size - engine.path.stat().st_size)


def _write_ledger(engine: RunEnvironment, done: Report) -> None:
    """Write pending changes to the ledger before erasing, so that no backup brings the messages back.

    If the ledger cannot be written, expired messages are erased anyway; it is written later, and the report has the
    error.
    """
    if engine.is_hot_only:
        return
    try:
        drain(engine.path, engine.config.ledger_path, done.started_at)
    except (StoreError, sqlite3.Error) as error:
        done.error = f"ledger: {error}"


@contextlib.contextmanager
def _emptying_wal(hot: Hot) -> Iterator[sqlite3.Connection]:
    """Context manager that opens the store for deleting, and empties its write-ahead log at the end."""
    with closing(sqlite.connect(hot.path)) as connection:
        try:
            yield connection
        finally:
            # Even after a failure: deleted data must not stay readable until the next run.
            empty_wal(connection)
