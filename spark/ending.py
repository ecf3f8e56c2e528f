"""Finishes a run: destroys keys, writes receipts, prunes old records, removes work files, and stores the report.

The keys of erased messages are destroyed in the vault and in its copies. Costs are CPU seconds of this process and
its Java, and the time for which it held the write lock. The CPU time of a cluster's executors is unknown.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial

from conclave.failpoints import reach
from conclave.keys.file import KeyFileError
from conclave.retention.jobs import ALL, Scope
from conclave.retention.resolve import PolicySettings
from conclave.store import keyring, message_keys
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError
from conclave.store.engine.sqlite import Step
from conclave.store.ledger import book
from conclave.store.resources import audit, receipts, registration_tokens, send_ids, state, taken_back
from conclave.store.views import overdue, runs
from conclave.store.views.runs import Run
from spark import readiness
from spark.environment import RunEnvironment
from spark.hot_store import ArchiveRunError, Hot, Pacer
from spark.report import Report
from spark.work_folder import remove_dead


def write_receipts(
    engine: RunEnvironment, settings: PolicySettings, done: Report, scope: Scope, *, seals: bool
) -> None:
    """Write receipts of the messages that this run, or an interrupted one, has erased; do the housekeeping.

    ``seals``: the keys of erased messages are destroyed; otherwise the run that destroys them writes the receipts.
    Failures go to the report. Does nothing while the clock is wrong, since receipts contain the time.
    """
    now, retention = done.started_at, engine.config.retention

    def steps(connection: sqlite3.Connection) -> Iterator[Step]:
        if not state.clock_state(connection).fault:
            if seals:
                yield partial(receipts.seal, connection, now, done.job)
            if scope.is_housekeeping:
                yield partial(receipts.prune, connection, now - retention.keep_receipts)
                yield partial(taken_back.prune, connection, now - retention.keep_receipts)
                yield partial(audit.prune, connection, now - retention.keep_audit)
                yield partial(registration_tokens.prune, connection, now)
                yield partial(send_ids.prune, connection, now - send_ids.KEPT_SECONDS)

    hot = readiness.open_hot(engine, settings, now)
    if scope.is_housekeeping:
        _prune_ledger(engine, settings, hot, done)
    try:
        hot.write_steps(steps)
        done.held = engine.count_held(hot)
        if done.error or scope != ALL:  # a successful full run leaves nothing
            total = hot.read(overdue.total_overdue, now)
            done.overdue_groups, done.overdue_seconds = total.groups, total.seconds
    except (StoreError, sqlite3.Error) as error:
        done.error = done.error or f"receipts: {error}"
    except ArchiveRunError as error:
        done.error = done.error or f"messages under legal holds could not be counted: {error}"


def _prune_ledger(engine: RunEnvironment, settings: PolicySettings, hot: Hot, done: Report) -> None:
    """Drop old ledger entries, unless the clock is wrong: a restore would undo the deletions of dropped entries."""
    if engine.is_hot_only:
        return
    try:
        if hot.read(state.clock_state).fault:
            return
        now = done.started_at
        keep, max_age = book.KEPT_SECONDS, settings.self_destruct_max_age
        book.drop_old(engine.config.ledger_path, now - keep, now - max_age, now)
    except (StoreError, sqlite3.Error) as error:
        done.error = done.error or f"ledger: {error}"


def empty_work(engine: RunEnvironment, done: Report) -> None:
    """Remove the work files of this run and of ended processes. Failures go to the report."""
    try:
        engine.empty_work()
        faults = remove_dead(engine.config.work)
    except OSError as error:
        faults = [str(error)]
    done.error = done.error or "; ".join(faults)


def store(engine: RunEnvironment, done: Report) -> None:
    """Add the run to the history."""
    reach("report.before")
    with closing(sqlite.connect(engine.path)) as connection, sqlite.write_transaction(connection):
        runs.add(connection, Run(**done.to_mapping()))
    reach("report.stored")


class Costs:
    """Measures the costs of one run. A process measures one run at a time."""

    def __init__(self, engine: RunEnvironment) -> None:
        self._engine = engine
        self._cpu = engine.cpu_seconds()
        Pacer.lock_seconds = Pacer.longest_lock_seconds = 0.0

    def note(self, done: Report) -> None:
        """Write the costs so far to the report."""
        done.cpu_seconds = round(max(0.0, self._engine.cpu_seconds() - self._cpu), 3)
        done.lock_seconds = round(Pacer.lock_seconds, 4)
        done.longest_lock_seconds = round(Pacer.longest_lock_seconds, 4)


_FAULTS = (KeyFileError, StoreError, sqlite3.Error)


def destroy_keys(engine: RunEnvironment, hot: Hot, done: Report) -> bool:
    """Destroy the pending keys of this run, or of an interrupted one, and update the copies of the vault.

    Returns whether they are destroyed. Failures go to the report, and the next run tries again.
    """
    are_destroyed = False
    try:
        state = hot.read(message_keys.state)
        if state is None:
            return True
        if engine.is_hot_only:
            return False
        keys = engine.keys(hot)
        keys.refresh()
        if keys.serial < state.serial:
            raise KeyFileError(f"{engine.config.keys_path}: was replaced by an older vault{keyring.ADVICE}")
        while pending := hot.read(message_keys.pending_erasures):
            hot.write(message_keys.make_durable)  # a power failure must not restore rows without keys
            reach("run.keys_noted")
            keys.erase(pending.ranges)
            reach("run.keys_lost")
            hot.write(message_keys.remove_pending, pending.rows, keys.serial)
        are_destroyed = True
        keyring.update_copies(keys, engine.config.ledger_path, engine.config.vault_copies)
    except _FAULTS as error:
        done.error = done.error or f"keys: {error}"
    return are_destroyed
