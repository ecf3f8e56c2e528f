"""One cleanup run, step by step: ready, lock, clock, plan, apply, archive, erase, report.

Also the work that begins as a run does: a dry run, and an operator's work in the archive.
"""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from conclave.archive.consistency import TRIES
from conclave.archive.files import DamagedLogError
from conclave.clock.guard import time_to_act_on
from conclave.failpoints import reach
from conclave.logs.setup import get_logger
from conclave.retention import due
from conclave.retention.jobs import ALL, Scope
from conclave.retention.resolve import PolicySettings
from conclave.store import clock_mending
from conclave.store.archive.restore import RestoreError
from conclave.store.engine import schema, sqlite
from conclave.store.engine.faults import StoreError, is_of_the_disk
from conclave.store.engine.sqlite import Step
from conclave.store.ledger import book, branches
from conclave.store.ledger.drain import drain
from conclave.store.resources import audit, receipts, registration_tokens, send_ids, state, taken_back
from conclave.store.views import overdue, runs
from conclave.store.views.runs import Run
from conclave.system import reserve
from conclave.system.worker_protocol import State
from spark import apply, lost_keys, rehearsal
from spark.costs import Costs
from spark.environment import CleanupError, RunEnvironment, Tell
from spark.hot_store import ArchiveError, Hot
from spark.pacer import Pacer, RunTooLongError, WalBusyError, empty_wal
from spark.report import Report
from spark.work_folder import remove_dead

if TYPE_CHECKING:
    from spark.archive.check import Check
    from spark.archive.run import ArchiveRun

log = get_logger(__name__)

Progress = Callable[[int, int], None]
"""Hears again and again how many rows are gone, and how many will be in the end."""


class ClockWrongError(Exception):
    """The clock was found wrong. Nothing is erased by a wrong clock."""


EXPECTED = (
    *(CleanupError, ClockWrongError, ArchiveError, RestoreError),
    *(RunTooLongError, WalBusyError, DamagedLogError),
)
"""Errors of a run, or of a command about the archive, that are no fault of the program."""

NOT_BEGUN = (CleanupError, OSError, StoreError, sqlite3.Error)
"""Errors for which a run could not begin."""


def clean_up(
    engine: RunEnvironment,
    *,
    scope: Scope = ALL,
    accept_clock: bool = False,
    progress: Progress | None = None,
    tell: Tell = lambda _: None,
) -> Report:
    """Do one run and return its report, which is in the history too. Waits until no other run is under way.

    ``scope``: what it does. ``accept_clock``: the clock counts as right from here on, and what was stamped ahead of it
    as stamped now. An error of the run is in its report. Raises CleanupError if the run could not begin, or could not
    end.
    """
    with _ready(engine, partial(_get_ready, engine, scope, tell)) as settings, engine.only_run(tell):
        tell(State.BEGAN)
        done, costs = Report(engine.config.cleanup.engine, engine.clock.now(), scope.name), Costs(engine)
        try:
            if accept_clock:
                _accept_clock(engine, _hot(engine, settings, done.started_at))
            done.started_at = _require_clock(engine)
            with engine.in_time():
                _carry_out(engine, settings, done, progress, scope)
        except EXPECTED as error:
            done.error = f"{type(error).__name__}: {error}"
        except Exception as error:
            if not is_of_the_disk(error) and not engine.broken_off:
                log.exception("cleanup_failed", engine=done.engine)
            done.error = f"{type(error).__name__}: {error}"
        except BaseException:
            engine.kill_spark()  # before another process gets the lock: Java may still be writing
            raise
        if done.error and engine.broken_off:
            done.error = f"{RunTooLongError.__name__}: {engine.broken_off}"
        are_lost = lost_keys.lose(engine, _hot(engine, settings, done.started_at).without_deadline(), done)
        _write_receipts(engine, settings, done, scope, seals=are_lost)
        _empty_work(engine, done)
        done.finished_at = engine.clock.now()
        costs.note(done)
        _store(engine, done)
        return done


@contextlib.contextmanager
def _ready(
    engine: RunEnvironment, prepare: Callable[[PolicySettings], object], *, writing: bool = True
) -> Iterator[PolicySettings]:
    """Check what a run needs, ``prepare`` it, and yield its settings.

    Raises CleanupError with one line for what fails.
    """
    try:
        with reserve.room(engine.config) if writing else contextlib.nullcontext():
            schema.require_current(engine.path, writing=writing)
            settings = _settings(engine, writing=writing)
            engine.check()
            prepare(settings)
        # Outside the block: while this run waits for another one, the reserve must be free to be made again.
        yield settings
    except OSError as error:
        raise CleanupError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error
    except (StoreError, sqlite3.Error) as error:
        raise CleanupError(str(error)) from error


def _get_ready(
    engine: RunEnvironment, scope: Scope, tell: Tell, settings: PolicySettings, *, in_seconds: float = 0.0
) -> bool:
    """Start Spark if the run will need it; not by a clock that is wrong, by which nothing is erased."""
    with closing(sqlite.connect(engine.path, readonly=True)) as connection:
        if state.look_at_clock(connection, engine.clock.read()):
            return False
    return engine.get_ready(settings, scope, engine.clock.now() + round(in_seconds), tell)


def get_ready_ahead(engine: RunEnvironment, scope: Scope, in_seconds: float, tell: Tell) -> bool:
    """Start Spark if a run that begins in so many seconds will need it; return whether it will.

    Raises any of NOT_BEGUN.
    """
    schema.require_current(engine.path, writing=False)
    return _get_ready(engine, scope, tell, _settings(engine, writing=False), in_seconds=in_seconds)


def _settings(engine: RunEnvironment, *, writing: bool) -> PolicySettings:
    """Return the settings that the server runs with, and continue from its time.

    They decide in every run, whichever process starts it. Raises CleanupError if this configuration differs from them,
    unless nothing is written.
    """
    with closing(sqlite.connect(engine.path, readonly=True)) as connection:
        stored = state.stored_policy(connection)
        if writing:
            _require_no_copy(engine, connection)
        engine.clock.resume(state.standing(connection).floor, None)
    if stored is None:
        raise CleanupError(f"{engine.path}: has not been served yet: start `conclave serve` on it first")
    if writing and stored != engine.config.policy:
        raise CleanupError(
            f"{', '.join(stored.differing(engine.config.policy))}: this configuration differs from the one that the"
            " server last ran with; restart the server with it first, or use the server's"
        )
    return stored


def _require_no_copy(engine: RunEnvironment, connection: sqlite3.Connection) -> None:
    """Raise CleanupError if the database is a restored copy that does not know yet what it must not bring back."""
    if fault := branches.fault_of_copy(connection, engine.path, engine.config.ledger_path):
        raise CleanupError(fault)


def _accept_clock(engine: RunEnvironment, hot: Hot) -> None:
    """Count the clock as right. Groups of which the archive has times to come are taken back from there before.

    The clock is wrong still if that fails; it can be repeated.
    """
    if archive := engine.archive(hot):
        archive.restore_ahead(engine.clock.read().wall, _spare(engine))
    hot.write(clock_mending.accept, engine.clock, hot.settings.token_ttl_seconds)


def _spare(engine: RunEnvironment) -> int:
    """Return how many bytes of the disk a restore from the archive leaves free."""
    return engine.config.cleanup.disk_reserve + reserve.SLACK_BYTES


def _require_clock(engine: RunEnvironment) -> int:
    """Return the Unix second of the run, and note that it is acted on from here on.

    Raises ClockWrongError.
    """
    with closing(sqlite.connect(engine.path)) as connection, sqlite.write_transaction(connection):
        reading = engine.clock.read()
        found = state.begin_run(connection, reading)
    engine.clock.resume(found.floor, None if found.fault else reading)
    if found.fault:
        raise ClockWrongError(
            f"{found.fault}: nothing is erased until the clock is right and accepted by"
            " `conclave cleanup run --accept-clock`"
        )
    # By the reading that was looked at: a jump since then must not decide what is erased.
    return time_to_act_on(reading.wall, found.floor.acted_until)


def _carry_out(
    engine: RunEnvironment, settings: PolicySettings, done: Report, progress: Progress | None, scope: Scope
) -> None:
    """Plan, apply, work in the archive, and leave no deleted data readable. Adds to ``done`` what was deleted."""
    deadline = time.monotonic() + engine.config.cleanup.max_run_time
    plan = engine.make_plan(settings, done.started_at, scope)
    reach("plan.made")
    size = engine.path.stat().st_size
    hot = _hot(engine, settings, done.started_at, deadline)
    try:
        with _emptied(hot) as connection:
            groups = due.groups(connection, plan)
            done.groups_touched = len(groups)
            total = apply.count_plan(connection, plan).total() if progress else 0
            tell = (lambda: progress(done.counts.total(), total)) if progress else (lambda: None)
            pacer = Pacer(connection, deadline, tell, lambda: hot.require(connection))
            apply.apply_plan(pacer, plan, settings, done.counts, partial(_tell_ledger, engine, done))
            apply.give_space_back(pacer)
        if archive := engine.find_archive_work(hot, scope):
            try:
                archive.run(done, groups, scope, partial(lost_keys.lose, engine, hot.without_deadline(), done))
            finally:
                with _emptied(hot) as connection:
                    apply.give_space_back(Pacer(connection, deadline, require=lambda: hot.require(connection)))
    finally:
        done.bytes_returned = max(0, size - engine.path.stat().st_size)


def _tell_ledger(engine: RunEnvironment, done: Report) -> None:
    """Write to the purge ledger what is to be erased, before it is: no backup may bring it back.

    What has expired goes even if the ledger cannot be written. It is told later then, and the report says so.
    """
    if engine.is_hot_only:
        return
    try:
        drain(engine.path, engine.config.ledger_path, done.started_at)
    except (StoreError, sqlite3.Error) as error:
        done.error = f"ledger: {error}"


@contextlib.contextmanager
def _emptied(hot: Hot) -> Iterator[sqlite3.Connection]:
    """Open the store for deleting; at the end of the block its write-ahead log is emptied."""
    with closing(sqlite.connect(hot.path)) as connection:
        try:
            yield connection
        finally:
            # Even if the run fails halfway: what it deleted must not stay readable until the next run.
            empty_wal(connection)


def _write_receipts(
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

    hot = _hot(engine, settings, now).without_deadline()
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


def _hot(engine: RunEnvironment, settings: PolicySettings, now: int, deadline: float = float("inf")) -> Hot:
    return Hot(engine.path, settings, now, deadline, requirement(settings))


def requirement(settings: PolicySettings) -> Callable[[sqlite3.Connection], None]:
    """Return what raises CleanupError if a server has started meanwhile with settings other than those of the run.

    It is called in each transaction, while others wait for the lock. So the settings are read only if their text is not
    the one that was read before.
    """
    seen: str | None = None

    def require(connection: sqlite3.Connection) -> None:
        nonlocal seen
        text = state.stored_text(connection)
        if text is None or text != seen:
            if state.stored_policy(connection) != settings:
                raise CleanupError("the server's settings changed during the run; the next one goes by the new ones")
            seen = text

    return require


def _empty_work(engine: RunEnvironment, done: Report) -> None:
    """Remove the work files of this run, and those of processes that have ended meanwhile.

    The report names what could not be removed.
    """
    try:
        engine.empty_work()
        left = remove_dead(engine.config.work)
    except OSError as error:
        left = [str(error)]
    done.error = done.error or "; ".join(left)


def _store(engine: RunEnvironment, done: Report) -> None:
    """Add the run to the history."""
    reach("report.before")
    with closing(sqlite.connect(engine.path)) as connection, sqlite.write_transaction(connection):
        runs.add(connection, Run(**done.to_mapping()))
    reach("report.stored")


def dry_run(engine: RunEnvironment, scope: Scope = ALL) -> Report:
    """Return what a run would delete; changes nothing. Raises CleanupError or ArchiveError.

    If the policy of this configuration is not the one in force: what a run would delete after a start with it. A run
    may be under way, which replaces files of the archive while they are counted: then it is tried again.
    """
    for _ in range(TRIES - 1):
        with contextlib.suppress(ArchiveError):
            return _planned(engine, scope)
    return _planned(engine, scope)


def _planned(engine: RunEnvironment, scope: Scope) -> Report:
    with _ready(engine, lambda _: None, writing=False) as stored:
        settings = engine.config.policy
        planned = Report(engine.config.cleanup.engine, engine.clock.now(), differing=settings.differing(stored))
        hot = _hot(engine, settings, planned.started_at)
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


def verify_archive(engine: RunEnvironment) -> "Check":
    """Read the whole archive while no run is under way, and return how it differs from its index.

    Raises CleanupError and ArchiveError.
    """
    with _archive_at_rest(engine) as archive:
        return archive.check()


def restore_archived(engine: RunEnvironment, group_id: bytes) -> int:
    """Take a group's messages back from the archive; return how many they are. Raises any of EXPECTED."""
    with _archive_at_rest(engine) as archive:
        return archive.restore(group_id, _spare(engine))


@contextlib.contextmanager
def _archive_at_rest(engine: RunEnvironment) -> Iterator["ArchiveRun"]:
    """Hold the run lock, and yield the archive. Raises CleanupError if there is none."""
    with _ready(engine, lambda _: engine.warm_up()) as settings, engine.only_run():
        archive = engine.archive(_hot(engine, settings, engine.clock.now()))
        if archive is None:
            raise CleanupError(f"{engine.path}: nothing is archived")
        try:
            yield archive
        finally:
            engine.empty_work()
