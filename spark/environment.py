"""The environment of runs: what they need of the machine, such as a warm Spark session, the run lock and the time."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from conclave.clock import Clock
from conclave.clock.steady import SteadyClock
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
from conclave.store.archive import moves
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError
from conclave.system import data_folder, locks, reserve
from conclave.system.locks import DatabaseLock
from conclave.system.worker_protocol import WorkerState
from spark import cluster, native, needs
from spark.cluster import ClusterError
from spark.hot_store import Hot
from spark.java import Java, why_not_started
from spark.java_check import DeployModeError, JarsMissingError, JavaFailsError, JavaMissingError, find_jars, find_java
from spark.native import NativeLibraryError
from spark.work_folder import WorkFolder, remove_dead

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.archive.run import ArchiveRun

log = get_logger(__name__)

HANG_SECONDS = 10.0
"""Spark gets 10 seconds more than a run may take. The server kills a worker that tells of no end some time later."""

Tell = Callable[[WorkerState], None]
"""Hears what a run does: that it is prepared, waits for another run, if it does, and has begun."""


class CleanupError(Exception):
    """A run could not begin. The message says what to do."""


class SparkStartError(CleanupError):
    """Spark did not start, for a reason that may pass."""


class RunEnvironment:
    """The configured engine on one store, for any number of runs.

    Spark is started for the first run that has anything for it to do, and stays warm. ``start_seconds``: how long that
    took, 0.0 if it was not started. ``used_at``: when it was last asked for, seconds of the monotonic clock.
    ``broken_off``: why Spark had to give up in the last run, "" if it had not.

    ``clock``: the time that the runs use. Small steps of the wall clock do not turn it back, not even from one run to
    the next.
    """

    def __init__(self, config: Config, clock: Clock, *, is_hot_only: bool = False) -> None:
        """Take the settings and the time; nothing is opened yet.

        ``is_hot_only``: runs leave an archive to a later run, as a run does that ends before it comes to it. They leave
        the purge ledger alone too: what waits for it is written by the server that goes on with the database.
        """
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
        """See that runs can work, and that Spark could be started for them if the engine is Spark; it is not yet.

        Under spark-submit it is, since its Java is there already. Raises CleanupError if there is no Java for it.
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
            with _told_plainly(), reserve.released_reserve(self.config):
                self._prepare_folders()
                find_java(archive=archive, memory=self.config.spark.driver_memory)
                cluster.require_secret(self.config.spark.master)
                if archive:
                    find_jars()
                    native.require_zstd(self.config.work)
        self._is_checked = True

    def warm_up(self) -> None:
        """Start Spark if the engine is Spark and it was not started. Raises CleanupError if that fails."""
        if self.config.cleanup.engine == "spark":
            self._session()
        else:
            self.check()

    def _session(self) -> "SparkSession":
        archive = self._uses_archive()
        if not self._spark:
            began = time.monotonic()
            with _told_plainly(), reserve.released_reserve(self.config):
                self._spark = self._start_spark(archive=archive)
            self._knows_archive = archive
            self.start_seconds = time.monotonic() - began
        elif archive and not self._knows_archive:
            raise CleanupError("the archive came into use after this process had started: restart the server")
        self.used_at = time.monotonic()
        return self._spark

    def _start_spark(self, *, archive: bool) -> "SparkSession":
        from spark.session import build_session  # noqa: PLC0415 - it loads PySpark, which few runs need

        self._prepare_folders()
        remove_dead(self.config.work)  # their files may be what fills the disk
        self._work = WorkFolder(self.config.work)
        # Java holds both locks until it ends: it may work a moment longer than this process lives.
        held = self._open_lock().descriptors
        return build_session(self.config, self._work, self._java, held=held, archive=archive)

    def _prepare_folders(self) -> None:
        """Make the folders that Spark works in. Raises DataFolderError or OSError."""
        data_folder.prepare(self.config.data, self.path, self.config.archive_path)
        self.config.work.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def is_warm(self) -> bool:
        """Whether Spark was started, and has not been stopped since."""
        return self._spark is not None

    def get_ready(self, settings: PolicySettings, scope: Scope, now: int, tell: Tell = lambda _: None) -> bool:
        """Start Spark if a run at the Unix second ``now`` has anything for it to do; return whether it has.

        ``tell`` hears that it begins. No connection to the store may be open in this process meanwhile.
        Raises CleanupError, StoreError or sqlite3.Error.
        """
        tell(WorkerState.PREPARING)
        self._is_needed = self._has_work(settings, scope, now)
        if self._is_needed:
            self.warm_up()
        return self._is_needed

    def _has_work(self, settings: PolicySettings, scope: Scope, now: int) -> bool:
        if self.config.cleanup.engine != "spark":
            return False
        hot = Hot(self.path, settings, now)
        return hot.read(needs.of_run, hot, scope)

    def close(self) -> None:
        """Stop Spark, end its Java process, and remove the work files. It may be done again."""
        self._stop_spark()
        if self._work:
            self._work.remove()
        if self._lock:
            self._lock.close()
        if self._keys:
            self._keys.close()

    def abandon(self) -> None:
        """Do as ``close`` does, but kill Java at once, even in the middle of its work."""
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
        """Kill Java if the block, a run, lasts for longer than it may; ``broken_off`` says so then.

        A run looks at the time between its steps. What Spark waits for in one may never come, as a worker of a cluster,
        and it may not even hear that it is to give up. Spark may be started late in the run, so this is looked at again
        and again. Under spark-submit Java is not ours to kill, and errors are told as they come.
        """
        may_take = self.config.cleanup.max_run_time

        def break_off() -> None:
            if not self._spark or not self._java.runs():  # the run looks at the time soon, or has its own error
                return
            self.broken_off = (
                f"max_run_time ({duration_text(may_take)}) was over, and Spark did not come to an end; the next run"
                " goes on from here. On a cluster, look whether workers are left"
            )
            self._java.kill()

        ended = threading.Event()

        def watch() -> None:
            seconds = min(may_take + HANG_SECONDS, threading.TIMEOUT_MAX)
            while not ended.wait(seconds):
                break_off()
                seconds = HANG_SECONDS

        self.broken_off = ""
        watching = threading.Thread(target=watch, name="in time", daemon=True)
        watching.start()
        try:
            yield
        finally:
            ended.set()
            watching.join()

    def kill_spark(self) -> None:
        """Kill Java at once, even in the middle of its work; everything else stays."""
        self._java.end()
        self._stop_spark()

    def _stop_spark(self) -> None:
        if self._spark and not self._java.has_ended():
            # Under spark-submit, a signal to all or the end of a cluster may have ended Java: nothing is left to stop.
            with contextlib.suppress(Exception):  # py4j raises many kinds of errors then
                self._spark.stop()
        self._spark = None
        self._java.end()

    def cpu_seconds(self) -> float:
        """Return for how long this process and its Java have worked so far."""
        return time.process_time() + self._java.cpu_seconds()

    def is_sound(self) -> bool:
        """Return whether the Spark session still answers; its Java process may have died."""
        if self._spark is None:
            return True
        if self.broken_off:  # asked now, it might not answer either
            return False
        try:
            return self._spark.range(1).count() == 1
        except Exception:  # noqa: BLE001 - py4j raises many kinds of errors if Java is dead
            return False

    @contextlib.contextmanager
    def only_run(self, tell: Tell = lambda _: None) -> Iterator[None]:
        """Hold the run lock for the block, with room on the disk. Waits for the lock.

        Only one run at a time works on a database, whichever process starts it. On a full disk the reserve gives the
        room. A process that is killed holds the lock until its Java process is dead too. Raises OSError.
        """

        def wait() -> None:
            log.info("waiting_for_another_run")
            tell(WorkerState.WAITING)

        with self._open_lock().hold(wait), reserve.released_reserve(self.config):
            remove_dead(self.config.work)  # the report names what cannot be removed
            yield

    def _open_lock(self) -> DatabaseLock:
        """Return the run lock. It is opened only once, since Java holds its files open too. Raises OSError."""
        if self._lock is None:
            self._lock = DatabaseLock(self.path, locks.CLEANUP)
        return self._lock

    def empty_work(self) -> None:
        """Remove the work files of a run; the folders stay. Raises OSError."""
        if self._work:
            self._work.empty()

    def make_plan(self, settings: PolicySettings, now: int, scope: Scope = ALL) -> Plan:
        """Plan a run from one snapshot of the store, as of the Unix second ``now``.

        Spark plans what lets anything go, and is started for it if need be. No connection to the store may be open in
        this process meanwhile. Raises CleanupError if Spark does not start.
        """
        hot = Hot(self.path, settings, now)
        if self.config.cleanup.engine != "spark":
            return hot.read(make_plan, settings, now, scope)
        if not self._is_needed and (plan := hot.read(needs.plan_without, hot, scope)):
            return plan
        session = self._session()
        from spark import spark_engine  # noqa: PLC0415 - as above

        return spark_engine.make_plan(session, self.path, settings, now, scope)

    def find_archive_work(self, hot: Hot, scope: Scope, risen: Collection[tuple[int, int]] = ()) -> "ArchiveRun | None":
        """Return the archive if a run has anything to do there, see ``needs.of_archive``."""
        if self.config.cleanup.engine != "spark" or not self._uses_archive():
            return None
        return self.archive(hot) if hot.read(needs.of_archive, hot, self.config.archive, scope, risen) else None

    def count_held(self, hot: Hot, risen: Collection[tuple[int, int]] = ()) -> int:
        """Return how many messages of both tiers legal holds have kept so far, see ``due.count_held``.

        Raises ArchiveError.
        """
        count = hot.read(due.count_held, hot.now, risen)
        if self.config.cleanup.engine != "spark" or not self._uses_archive() or not hot.read(has_any):
            return count
        from spark.archive import held  # noqa: PLC0415 - as above

        return count + held.count(hot, self.config.archive_path, partial(self.keys, hot), risen)

    def keys(self, hot: Hot) -> KeyStore:
        """Return the keys of the messages, which stay open; ``hot`` has some. Raises StoreError."""
        if self._keys is None:
            self._keys = keyring.open_to_read(hot.path, self.config.keys_path)
        if self._keys is None:
            raise StoreError(f"{hot.path}: has no keys")
        return self._keys

    def archive(self, hot: Hot) -> "ArchiveRun | None":
        """Return the archive, for which Spark is started when it is needed.

        None without Spark, or if there is no archive and none is wanted.
        """
        if self.config.cleanup.engine != "spark" or not self._uses_archive():
            return None
        from spark.archive.run import ArchiveRun  # noqa: PLC0415 - as above

        values = hot, self.config.archive_path, self.config.archive, partial(self.keys, hot)
        return ArchiveRun(self._session, self._forget_tables, *values)

    def _forget_tables(self) -> None:
        """Have Spark forget what it knows of tables, if it was started and can know any."""
        if self._spark and self._knows_archive:
            self._spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]  # noqa: SLF001 - the only way to reach it

    def _uses_archive(self) -> bool:
        """Return whether messages shall move to the archive, or have moved there."""
        if self.is_hot_only:
            return False
        if self.config.archive.after != KEEP:
            return True
        if not self.path.exists():
            return False
        with closing(sqlite.connect(self.path, readonly=True)) as connection:
            return moves.is_in_use(connection)


def is_submitted() -> bool:
    """Return whether spark-submit has started this process: then its Java is there already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextlib.contextmanager
def _told_plainly() -> Iterator[None]:
    """Turn what keeps Spark from starting into a CleanupError: a SparkStartError if it may pass."""
    try:
        yield
    except CleanupError:
        raise
    except (data_folder.DataFolderError, JavaFailsError) as error:
        # A disk may be away for a while, or memory short.
        raise SparkStartError(str(error)) from error
    except (JavaMissingError, JarsMissingError, NativeLibraryError, ClusterError, DeployModeError) as error:
        raise CleanupError(str(error)) from error
    except OSError as error:
        raise SparkStartError(f"Spark could not start: {error}") from error
    except Exception as error:
        raise SparkStartError(f"Spark could not start: {why_not_started(error)}") from error
