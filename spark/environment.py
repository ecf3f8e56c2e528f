"""The environment of runs: what they need of the machine, such as a warm Spark session, the run lock and the time."""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from conclave.clock import Clock
from conclave.clock.steady import SteadyClock
from conclave.config.settings import Config
from conclave.logs.setup import get_logger
from conclave.retention.jobs import ALL, Scope
from conclave.retention.plan import Plan, make_plan
from conclave.retention.policy import KEEP
from conclave.retention.resolve import PolicySettings
from conclave.store.archive import moves
from conclave.store.engine import sqlite
from conclave.system import data_folder, locks, reserve
from conclave.system.locks import DatabaseLock
from conclave.system.worker_protocol import State
from spark.hot_store import Hot
from spark.java import Java
from spark.start_faults import why_not_started
from spark.work_folder import WorkFolder, remove_dead

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.archive.run import ArchiveRun

log = get_logger(__name__)

Tell = Callable[[State], None]
"""Hears what a run does: that it waits for another run, if it does, and that it has begun."""


class CleanupError(Exception):
    """A run could not begin. The message says what to do."""


class SparkStartError(CleanupError):
    """Spark did not start, for a reason that may pass."""


class RunEnvironment:
    """The configured engine on one store, for any number of runs. Spark starts once and stays warm.

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
        self._spark: SparkSession | None = None
        self._knows_archive = False
        self._java = Java()
        self._work: WorkFolder | None = None
        self._lock: DatabaseLock | None = None

    def warm_up(self) -> None:
        """Start Spark if the engine is Spark. Raises CleanupError if there is no Java for it."""
        archive = self._uses_archive()
        if self.config.cleanup.engine != "spark":
            if archive:
                raise CleanupError('messages were moved to the archive, which needs [cleanup] engine = "spark"')
            return
        if not self._spark:
            self._start_spark(archive=archive)
        elif archive and not self._knows_archive:
            raise CleanupError("the archive came into use after this process had started: restart the server")

    def _start_spark(self, *, archive: bool) -> None:
        from spark.session import (  # noqa: PLC0415 - the SQL engine needs no Spark
            DeployModeError,
            JarsMissingError,
            JavaFailsError,
            JavaMissingError,
            build_session,
        )

        try:
            with reserve.room(self.config):
                data_folder.prepare(self.config.data, self.path, self.config.archive_path)
                remove_dead(self.config.work)  # their files may be what fills the disk
                self._work = WorkFolder(self.config.work)
                # Java holds both locks until it ends: it may work a moment longer than this process lives.
                held = self._work.descriptor, *self._open_lock().descriptors
                self._spark = build_session(self.config, self._work.path, self._java, held=held, archive=archive)
            self._knows_archive = archive
        except (data_folder.DataFolderError, JavaFailsError) as error:
            # A disk may be away for a while, or memory short.
            raise SparkStartError(str(error)) from error
        except (JavaMissingError, JarsMissingError, DeployModeError) as error:
            raise CleanupError(str(error)) from error
        except OSError as error:
            raise SparkStartError(f"Spark could not start: {error}") from error
        except Exception as error:
            raise SparkStartError(f"Spark could not start: {why_not_started(error)}") from error

    def close(self) -> None:
        """Stop Spark, end its Java process, and remove the work files."""
        self._stop_spark()
        if self._work:
            self._work.remove()
        if self._lock:
            self._lock.close()

    def abandon(self) -> None:
        """Do as ``close`` does, but kill Java at once, even in the middle of its work."""
        self._java.end()
        self.close()

    def halt(self) -> None:
        """Stop Java from writing, and remove the work files. The process must end right after this."""
        self._java.freeze()
        if self._work:
            self._work.remove()

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
        """Tell whether the Spark session still answers; its Java process may have died."""
        if self._spark is None:
            return True
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
            tell(State.WAITING)

        with self._open_lock().hold(wait), reserve.room(self.config):
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

        No connection to the store may be open in this process meanwhile.
        """
        if self._spark:
            from spark import spark_engine  # noqa: PLC0415 - as above

            return spark_engine.make_plan(self._spark, self.path, settings, now, scope)
        with closing(sqlite.connect(self.path, readonly=True)) as connection:
            connection.execute("BEGIN")
            return make_plan(connection, settings, now, scope)

    def archive(self, hot: Hot) -> "ArchiveRun | None":
        """Return the archive; None without Spark, or if there is none and the settings want none."""
        if not self._spark or not self._uses_archive():
            return None
        from spark.archive.run import ArchiveRun  # noqa: PLC0415 - as above

        return ArchiveRun(self._spark, hot, self.config.archive_path, self.config.archive)

    def _uses_archive(self) -> bool:
        """Tell whether messages shall move to the archive, or have moved there."""
        if self.is_hot_only:
            return False
        if self.config.archive.after != KEEP:
            return True
        if not self.path.exists():
            return False
        with closing(sqlite.connect(self.path, readonly=True)) as connection:
            return moves.is_in_use(connection)
