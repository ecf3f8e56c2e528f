"""The archive part of a run: finishes an active batch, erases messages, moves messages, and reclaims space."""

import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pyarrow
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from conclave.archive.faults import one_line
from conclave.archive.snapshot import mismatch_text, next_turn
from conclave.config.archive import ArchiveConfig
from conclave.failpoints import reach
from conclave.keys.store import KeyStore
from conclave.logs.setup import get_logger
from conclave.retention import due
from conclave.retention.jobs import ALL, Scope
from conclave.retention.plan import Plan
from conclave.retention.policy import KEEP
from conclave.store.archive import move_selection, moves, reclaiming
from conclave.store.archive.moves import ArchiveState
from spark.archive import expiry, expiry_plan, reclaim
from spark.archive.check import Check, examine
from spark.archive.living import Living
from spark.archive.move import Mover
from spark.archive.restore import restore
from spark.archive.table import NotDurableError, Table
from spark.hot_store import ArchiveRunError, Hot
from spark.report import Report

log = get_logger(__name__)


_LIBRARY_ERRORS = (DeltaError, pyarrow.ArrowException, PySparkException, Py4JJavaError)


class ArchiveRun:
    """The archive of one store in one run."""

    def __init__(
        self,
        session: Callable[[], SparkSession],
        forget: Callable[[], None],
        hot: Hot,
        path: Path,
        config: ArchiveConfig,
        keys: Callable[[], KeyStore],
    ) -> None:
        """Store the parameters; nothing is opened yet.

        ``session``: returns the Spark session, and starts Spark if necessary. ``forget``: clears Spark's cache of
        tables, without starting it. ``path``: the folder of the table. ``keys``: opens the keys of the messages.
        """
        self._session = session
        self._forget = forget
        self._hot = hot
        self._config = config
        self._keys = keys
        self._table = Table(session, path)
        self._is_open = False
        self._has_turn = False

    def run(self, done: Report, counted: Collection[int], scope: Scope, destroy: Callable[[], bool]) -> None:
        """Do the work in the archive, after the rules were applied to the hot store. Raises ArchiveRunError.

        ``done``: the report to add the results to. ``counted``: the keys of groups that it already counts as touched.
        ``scope``: the scope of the run. ``destroy``: destroys pending keys, and returns whether it succeeded.
        """
        if self._may_move(scope) and self._hot.read(moves.find_state) is None:
            self._hot.write(moves.begin)
        try:
            if self._hot.read(moves.batch_under_way) is not None:
                done.archived += self._change().finish()
            self._drop_copies()
            unsettled = self._settle_restored()
            if plan := self._hot.read(expiry_plan.make_plan, self._hot, scope):
                touched: set[int] = set()
                are_destroyed = False
                try:
                    expiry.erase(self._hot, self._table.path, plan, self._living(), done.counts, touched)
                finally:
                    done.groups_touched += len(touched.difference(counted))
                    are_destroyed = destroy()
                if are_destroyed:
                    expiry.forget(self._hot, plan, self._living())
            self._require_settled(unsettled)
            self._move(done, scope)
            if scope.is_housekeeping and self._hot.read(
                reclaiming.is_due, self._hot.now, self._config.reclaim_interval
            ):
                self._reclaim(done)
        except NotDurableError:
            raise  # the replaced files may be the only ones left
        except Exception as error:
            self._sweep()  # not on other exceptions: they end the process, and Java may still be writing
            if isinstance(error, _LIBRARY_ERRORS) or _is_file_error(error):
                log.exception("archive_failed")
                raise ArchiveRunError(f"{self._table.path}: {one_line(error)}") from error
            raise
        else:
            self._sweep()

    def count(self, planned: Report, counted: Collection[int], plan: Plan) -> None:
        """Add the results of a dry run to ``planned``. Changes nothing. Raises ArchiveRunError.

        ``counted``: see ``run``. ``plan``: the plan for the hot store. Messages that it deletes do not move, and
        marks that it raises apply to the archive.
        """
        state = self._hot.read(moves.find_state)
        if self._config.after != KEEP:
            hot = self._hot.with_prepare(partial(self._hide_planned, plan))
            before = hot.now - self._config.after
            planned.archived = hot.read(move_selection.count, self._config.least_lifetime, before)
        archive_plan = self._hot.read(expiry_plan.make_plan, self._hot, ALL, plan.risen)
        if archive_plan and state:
            planned.groups_touched += len({part.group_key for part in archive_plan.parts}.difference(counted))
            with self._as_archive_errors():
                planned.counts.update(expiry.count(self._hot, self._table.path, archive_plan, self._living()))

    def _hide_planned(self, plan: Plan, connection: sqlite3.Connection) -> None:
        self._hot.prepare(connection)
        due.hide_planned(connection, plan)

    def check(self) -> Check:
        """Read the whole table and compare it with the index. Changes nothing. Raises ArchiveRunError."""
        state = self._hot.read(moves.find_state)
        if state is None or not (state.version or self._hot.read(moves.has_parts)):
            return Check()
        with self._as_archive_errors():
            self._require(state)
            if self._hot.read(reclaiming.is_unsettled):
                raise ArchiveRunError("the index was restored from a backup: the next run settles it first")
            return examine(self._session(), self._hot, self._table.read(), self._living())

    def restore(self, group_id: bytes, spare: int, *, is_forced: bool = False) -> int:
        """Move a group's messages back into the hot store; return how many. Raises ArchiveRunError or RestoreError.

        ``spare``: the bytes to leave free on the disk. ``is_forced``: even damaged messages, and those that would move
        again.
        """
        state = self._hot.read(moves.find_state)
        if state is None:
            raise ArchiveRunError("nothing was ever archived")
        with self._as_archive_errors():
            self._require(state)
            self._mover().drop_copies()  # copies that are left may lack their bodies
            values = self._session(), self._hot, self._table, self._config, self._living()
            return restore(*values, group_id, spare, is_forced=is_forced)

    def restore_ahead(self, now: int, spare: int) -> None:
        """Move back all groups with archived messages that were created at the Unix second ``now`` or later.

        Includes damaged messages. ``spare``: see ``restore``. Raises ArchiveRunError or RestoreError.
        """
        if self._hot.read(moves.batch_under_way) is not None:
            with self._as_archive_errors():
                self._change().finish()
        for group_id in self._hot.read(moves.groups_ahead, now):
            self.restore(group_id, spare, is_forced=True)

    def _settle_restored(self) -> str:
        """Update an index that was restored from a backup. Return an error or "": the run continues after an error."""
        if self._hot.read(reclaiming.is_unsettled):
            try:
                expiry.settle_restored(self._hot, self._table.path, self._living())
            except ArchiveRunError as error:
                return str(error)
        return ""

    def _require_settled(self, fault: str) -> None:
        if fault:
            raise ArchiveRunError(fault)

    def _living(self) -> Living:
        return Living(self._hot, self._keys)

    def _reclaim(self, done: Report) -> None:
        """Reclaim the space of erased messages, where it is worthwhile."""
        self._open()
        before, size = self._hot.now - self._config.reclaim_after, self._bytes()
        if reclaimable := reclaim.find(self._hot, self._table, before):
            self._change()
            reclaim.drop(self._hot, self._table, reclaimable.dropped)
            for partition in reclaimable.rewritten:
                reclaim.rewrite(self._session(), self._hot, self._table, partition, self._living())
            self._sweep()
            done.archive_bytes_returned = max(0, size - self._bytes())
        self._hot.write(reclaiming.note_done, self._hot.now)

    def _drop_copies(self) -> None:
        if self._hot.read(moves.hot_copies):
            self._open()  # raises if the table does not match: the copies may be the only ones left
            self._mover().drop_copies()

    def _may_move(self, scope: Scope) -> bool:
        return scope.is_housekeeping and self._config.after != KEEP

    def _move(self, done: Report, scope: Scope) -> None:
        least, before = self._config.least_lifetime, self._hot.now - self._config.after
        if self._may_move(scope) and self._hot.read(move_selection.has_work, least, before):
            for count in self._change().move(self._config):
                done.archived += count

    def _mover(self) -> Mover:
        return Mover(self._hot, self._table, self._hot.archive_state().archive_id, self._living)

    def _change(self) -> Mover:
        """Open the table for changes, and start this run's turn, first in the database, then in the table."""
        self._open()
        if not self._has_turn:
            state = self._hot.archive_state()
            turn, former = next_turn(state.turn), self._table.turn(state.archive_id)
            self._hot.write(moves.begin_turn, turn, former, self._table.version())
            reach("archive.turn_noted")
            self._table.begin_turn(state.archive_id, turn)
            self._has_turn = True
            reach("archive.turn_begun")
        return self._mover()

    def _open(self) -> None:
        if not self._is_open:
            state = self._hot.archive_state()
            is_new = state.version == 0 and not self._hot.read(moves.has_parts)
            if state.unerased or not (is_new or self._table.can_be_opened()):
                self._repair(state)
            elif is_new:
                self._table.remove_unmade()
            self._require(state, is_new=is_new)
            self._table.make_durable(state.version)  # the table is new, or a killed run did not do it
            self._is_open = True

    def _repair(self, state: ArchiveState) -> None:
        """Roll back incomplete versions after a power failure, and remove damaged checkpoints."""
        begun, _ = self._hot.read(moves.last_batches)
        if done := self._table.repair(state, begun):
            self._forget()  # it has cached versions that no longer exist
            log.warning("archive_repaired", **asdict(done))

    def _require(self, state: ArchiveState, *, is_new: bool = False) -> None:
        """Raise ArchiveRunError unless the table matches the database.

        The table must have all batches that the database has completed, and none that it has not started.
        """
        self._table.prepare(self._hot.archive_state, is_new=is_new)
        archived = self._table.last_batch(state.archive_id)
        begun, ended = self._hot.read(moves.last_batches)
        if not ended <= archived <= begun:
            raise ArchiveRunError(mismatch_text(self._table.path, is_newer=archived > begun))

    def _sweep(self) -> None:
        """Remove files that this run, or an interrupted one, has replaced."""
        hot = self._hot.without_deadline()
        state = hot.read(moves.find_state)
        if state is None or not state.unerased:
            return
        self._open()
        self._table.make_durable(state.version)  # the versions of a failed run
        hot.write(moves.note_version, self._table.version())
        reach("archive.before_erase")
        self._table.sweep()
        hot.write(moves.note_erased)
        if hot.read(moves.batch_under_way) is None:  # otherwise the log must still show which version added it
            self._table.clean_log()
        reach("archive.erased")

    @contextmanager
    def _as_archive_errors(self) -> Iterator[None]:
        """Context manager that maps errors of Spark, including the end of Java, to an ArchiveRunError of one line."""
        try:
            yield
        except (PySparkException, Py4JError) as error:
            raise ArchiveRunError(f"{self._table.path}: cannot be read: {one_line(error)}") from error

    def _bytes(self) -> int:
        return sum(path.stat().st_size for path in self._table.path.rglob("*") if path.is_file())


def _is_file_error(error: Exception) -> bool:
    """Return whether an error of delta-rs or of the system is about a file, not about a connection."""
    return isinstance(error, OSError) and not isinstance(error, ConnectionError)
