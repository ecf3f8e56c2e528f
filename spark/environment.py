"""The environment of runs: the Spark session, the run lock, the clock and the keys."""

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from conclave.clock import Clock
from conclave.clock.steady import SteadyClock
from conclave.config.archive import ArchiveConfig
from conclave.config.settings import Config
from conclave.keys.store import KeyStore
from conclave.logs.setup import get_logger
from conclave.retention import due
from conclave.retention.durations import duration_text
from conclave.retention.holds import has_any
from conclave.retention.jobs import ALL, Scope
from conclave.retention.plan import Plan, make_plan
from conclave.retention.policy import KEEP
from conclave.retention.resolve import PolicySettings
from conclave.store import keyring
from conclave.store.archive import move_selection, moves, reclaiming
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError
from conclave.system import data_folder, locks, reserve
from conclave.system.locks import DatabaseLock
from conclave.system.worker_protocol import WorkerState
from spark import requirements
from spark.archive import expiry_plan
from spark.hot_store import Hot
from spark.java import Java, why_not_started
from spark.requirements import JavaFailsError, RequirementError, find_jars, find_java
from spark.work_folder import WorkFolder, remove_dead

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.archive.run import ArchiveRun

log = get_logger(__name__)

HANG_SECONDS = 10.0
"""Java is killed 10 seconds after the maximum time of a run. The server kills an unresponsive worker later."""

Tell = Callable[[WorkerState], None]
"""Called with each state of a run: preparing, waiting for another run, running."""


class CleanupError(Exception):
    """A run could not start. The message says what to do."""


class SparkStartError(CleanupError):
    """Spark did not start, for a reason that may be temporary."""


class RunEnvironment:
    """The environment of any number of runs on one store.

    Spark is started for the first run that needs it, and keeps running. ``start_seconds``: how long the start took; 0.0
    if not started. ``used_at``: the last use of Spark, seconds of the monotonic clock. ``broken_off``: why Spark was
    killed during the last run, or "". ``clock``: a steady clock for all runs.
    """

    def __init__(self, config: Config, clock: Clock, *, is_hot_only: bool = False) -> None:
        """Store the parameters. ``is_hot_only``: leave changes of the archive and the ledger to later runs."""
        self.is_hot_only = is_hot_only
        self.config = config
        self.path = config.database
        self.clock = SteadyClock(clock)
        self.start_seconds = self.used_at = 0.0
        self.broken_off = ""
        self._spark: SparkSession | None = None
        self._knows_archive = False
        self._is_checked = self._is_needed = False
        self._java = Java()
        self._work: WorkFolder | None = None
        self._lock: DatabaseLock | None = None
        self._keys: KeyStore | None = None

    def check(self) -> None:
        """Check that runs can work and that Spark can start, without starting it except under spark-submit.

        Raises CleanupError.
        """
        if self._is_checked:
            return
        archive = self._uses_archive()
        if self.config.cleanup.engine != "spark":
            if archive:
                raise CleanupError('messages were moved to the archive, which needs [cleanup] engine = "spark"')
        elif is_submitted():
            self.warm_up()
        elif not self._spark:
            with _cleanup_errors(), reserve.released_reserve(self.config):
                self._prepare_folders()
                find_java(archive=archive, memory=self.config.spark.driver_memory)
                requirements.require_secret(self.config.spark.master)
                if archive:
                    find_jars()
                    requirements.require_zstd(self.config.work)
        self._is_checked = True

    def warm_up(self) -> None:
        """Start Spark if the engine is Spark and it is not running. Raises CleanupError."""
        if self.config.cleanup.engine == "spark":
            self._session()
        else:
            self.check()

    def _session(self) -> "SparkSession":
        archive = self._uses_archive()
        if not self._spark:
            started = time.monotonic()
            with _cleanup_errors(), reserve.released_reserve(self.config):
                self._spark = self._start_spark(archive=archive)
            self._knows_archive = archive
            self.start_seconds = time.monotonic() - started
        elif archive and not self._knows_archive:
            raise CleanupError("the archive came into use after this process had started: restart the server")
        self.used_at = time.monotonic()
        return self._spark

    def _start_spark(self, *, archive: bool) -> "SparkSession":
        from spark.session import build_session  # noqa: PLC0415 - it loads PySpark, which few runs need

        self._prepare_folders()
        remove_dead(self.config.work)  # their files may fill the disk
        self._work = WorkFolder(self.config.work)
        # Java holds the locks too, since it may end a moment after this process.
        held = self._open_lock().descriptors
        return build_session(self.config, self._work, self._java, held=held, archive=archive)

    def _prepare_folders(self) -> None:
        """Create Spark's work folders. Raises DataFolderError or OSError."""
        data_folder.prepare(self.config.data, self.path, self.config.archive_path)
        self.config.work.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def is_warm(self) -> bool:
        """Whether Spark is running."""
        return self._spark is not None

    def get_ready(self, settings: PolicySettings, scope: Scope, now: int, tell: Tell = lambda _: None) -> bool:
        """Start Spark if a run at the Unix second ``now`` needs it; return whether it does.

        No connection to the store may be open in this process. Raises CleanupError, StoreError or sqlite3.Error.
        """
        tell(WorkerState.PREPARING)
        self._is_needed = False
        if self.config.cleanup.engine == "spark":
            hot = Hot(self.path, settings, now)
            self._is_needed = hot.read(_plan_without_spark, hot, scope) is None
        if self._is_needed:
            self.warm_up()
        return self._is_needed

    def close(self) -> None:
        """Stop Spark, end its Java process, and remove the work files. Idempotent."""
        self._stop_spark()
        if self._work:
            self._work.remove()
        if self._lock:
            self._lock.close()
        if self._keys:
            self._keys.close()

    def abandon(self) -> None:
        """Close, but kill Java at once, even if it is working."""
        self._java.end()
        self.close()

    def halt(self) -> None:
        """Stop Java from writing, and remove the work files. The process must end right after this."""
        self._java.freeze()
        if self._work:
            self._work.remove()
        self._java.kill()

    @contextlib.contextmanager
    def in_time(self) -> Iterator[None]:
        """Context manager for a run that kills Java if the run exceeds its time; sets ``broken_off``.

        A run checks the time between its steps, but Spark may wait for ever within a step, such as for a worker of a
        cluster. Checks repeatedly, since Spark may be started late. Does nothing under spark-submit.
        """
        max_seconds = self.config.cleanup.max_run_time

        def break_off() -> None:
            if not self._spark or not self._java.runs():  # the run checks the time itself, or has failed
                return
            self.broken_off = (
                f"max_run_time ({duration_text(max_seconds)}) was over, and Spark did not stop; the next run continues."
                " On a cluster, check that it has workers"
            )
            self._java.kill()

        ended = threading.Event()

        def watch() -> None:
            seconds = min(max_seconds + HANG_SECONDS, threading.TIMEOUT_MAX)
            while not ended.wait(seconds):
                break_off()
                seconds = HANG_SECONDS

        self.broken_off = ""
        watcher = threading.Thread(target=watch, name="in time", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def kill_spark(self) -> None:
        """Kill Java at once, even if it is working. Change nothing else."""
        self._java.end()
        self._stop_spark()

    def _stop_spark(self) -> None:
        if self._spark and not self._java.has_ended():
            # Under spark-submit, Java may have ended by a signal or with its cluster.
            with contextlib.suppress(Exception):  # py4j may raise any error
                self._spark.stop()
        self._spark = None
        self._java.end()

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of this process and its Java so far."""
        return time.process_time() + self._java.cpu_seconds()

    def is_sound(self) -> bool:
        """Return whether the Spark session responds, or is not running."""
        if self._spark is None:
            return True
        if self.broken_off:  # a query might hang
            return False
        try:
            return self._spark.range(1).count() == 1
        except Exception:  # noqa: BLE001 - py4j may raise any error if Java has ended
            return False

    @contextlib.contextmanager
    def only_run(self, tell: Tell = lambda _: None) -> Iterator[None]:
        """Context manager that waits for the run lock, holds it, and releases the disk reserve.

        Only one run at a time works on a database, across processes. The lock of a killed process is held until its
        Java has ended too. Raises OSError.
        """

        def wait() -> None:
            log.info("waiting_for_another_run")
            tell(WorkerState.WAITING)

        with self._open_lock().hold(wait), reserve.released_reserve(self.config):
            remove_dead(self.config.work)  # failures are ignored here: the run tries again at its end and reports them
            yield

    def _open_lock(self) -> DatabaseLock:
        """Return the run lock, opened once, since Java inherits its files. Raises OSError."""
        if self._lock is None:
            self._lock = DatabaseLock(self.path, locks.CLEANUP)
        return self._lock

    def empty_work(self) -> None:
        """Remove the work files of a run, but not the folders. Raises OSError."""
        if self._work:
            self._work.empty()

    def make_plan(self, settings: PolicySettings, now: int, scope: Scope = ALL) -> Plan:
        """Plan a run at the Unix second ``now``, from one snapshot of the store.

        Starts Spark if messages of the hot store are due. No connection to the store may be open in this process.
        Raises CleanupError.
        """
        hot = Hot(self.path, settings, now)
        if self.config.cleanup.engine != "spark":
            return hot.read(make_plan, settings, now, scope)
        if not self._is_needed and (plan := hot.read(_plan_without_spark, hot, scope)):
            return plan
        session = self._session()
        from spark.plan import make_plan as plan_by_spark  # noqa: PLC0415 - as above

        return plan_by_spark(session, self.path, settings, now, scope)

    def find_archive_work(self, hot: Hot, scope: Scope, risen: Collection[tuple[int, int]] = ()) -> "ArchiveRun | None":
        """Return the archive if a run has work there, see ``_needs_archive``."""
        if self.config.cleanup.engine != "spark" or not self._uses_archive():
            return None
        return self.archive(hot) if hot.read(_needs_archive, hot, self.config.archive, scope, risen) else None

    def count_held(self, hot: Hot, risen: Collection[tuple[int, int]] = ()) -> int:
        """Return how many messages, in both tiers, would be erased if there were no legal holds.

        ``risen``: the marks that the run will raise, see ``due.count_held``. Raises ArchiveRunError.
        """
        count = hot.read(due.count_held, hot.now, risen)
        if self.config.cleanup.engine != "spark" or not self._uses_archive() or not hot.read(has_any):
            return count
        from spark.archive import expiry  # noqa: PLC0415 - as above

        return count + expiry.count_held(hot, self.config.archive_path, partial(self.keys, hot), risen)

    def keys(self, hot: Hot) -> KeyStore:
        """Return the keys of the messages, opened once. Raises StoreError."""
        if self._keys is None:
            self._keys = keyring.open_to_read(hot.path, self.config.keys_path)
        if self._keys is None:
            raise StoreError(f"{hot.path}: has no keys")
        return self._keys

    def archive(self, hot: Hot) -> "ArchiveRun | None":
        """Return the archive, which starts Spark if necessary; None if no archive is used, or the engine is SQL."""
        if self.config.cleanup.engine != "spark" or not self._uses_archive():
            return None
        from spark.archive.run import ArchiveRun  # noqa: PLC0415 - as above

        values = hot, self.config.archive_path, self.config.archive, partial(self.keys, hot)
        return ArchiveRun(self._session, self._forget_tables, *values)

    def _forget_tables(self) -> None:
        """Clear Spark's cache of Delta tables, if it is running."""
        if self._spark and self._knows_archive:
            self._spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]  # noqa: SLF001 - the only way to reach it

    def _uses_archive(self) -> bool:
        """Return whether messages move to the archive by the settings, or have moved there."""
        if self.is_hot_only:
            return False
        if self.config.archive.after != KEEP:
            return True
        if not self.path.exists():
            return False
        with closing(sqlite.connect(self.path, readonly=True)) as connection:
            return moves.is_in_use(connection)


def is_submitted() -> bool:
    """Return whether spark-submit has started this process, and its Java."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _plan_without_spark(connection: sqlite3.Connection, hot: Hot, scope: Scope) -> Plan | None:
    """Return the plan of a run that deletes nothing from the hot store; None if messages are due there.

    The plan may have deleted groups and accounts whose messages are withheld, or in the archive. A run without a plan
    needs Spark from the start. Erasing from the archive does not; reclaiming space does: then Spark is started later.
    """
    plan = make_plan(connection, hot.settings, hot.now, scope)
    return None if due.is_any(connection, plan) else plan


def _needs_archive(
    connection: sqlite3.Connection,
    hot: Hot,
    archive: ArchiveConfig,
    scope: Scope,
    risen: Collection[tuple[int, int]] = (),
) -> bool:
    """Return whether a run has to open the archive, after the rules were applied to the hot store.

    Always true if messages may be due while a user is under a legal hold: only the table shows their senders.
    ``risen``: the marks that the run will raise, see ``expiry_plan.make_plan``.
    """
    state = moves.find_state(connection)
    return (
        (state is not None and (state.unerased or moves.batch_under_way(connection) is not None))
        or bool(moves.hot_copies(connection))
        or reclaiming.is_unsettled(connection)
        or (
            scope.is_housekeeping
            and archive.after != KEEP
            and move_selection.has_work(connection, archive.least_lifetime, hot.now - archive.after)
        )
        or (scope.is_housekeeping and reclaiming.is_due(connection, hot.now, archive.reclaim_interval))
        or bool(expiry_plan.make_plan(connection, hot, scope, risen))
    )


@contextlib.contextmanager
def _cleanup_errors() -> Iterator[None]:
    """Context manager that maps errors of Spark's start to CleanupError, or SparkStartError if temporary."""
    try:
        yield
    except CleanupError:
        raise
    except (data_folder.DataFolderError, JavaFailsError) as error:
        # A disk may be unmounted, or memory low, for a while.
        raise SparkStartError(str(error)) from error
    except RequirementError as error:
        raise CleanupError(str(error)) from error
    except OSError as error:
        raise SparkStartError(f"Spark could not start: {error}") from error
    except Exception as error:
        raise SparkStartError(f"Spark could not start: {why_not_started(error)}") from error
