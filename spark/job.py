"""One cleanup run: read, plan, apply, erase, report.

As a program, by spark-submit or Python, it is `conclave cleanup run`.
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from conclave.clock import Clock
from conclave.config.settings import Config
from conclave.failpoints import reach
from conclave.logs import get_logger
from conclave.retention.policy import KEEP, PolicySettings
from conclave.steady_clock import SteadyClock
from conclave.store import database, state
from conclave.store.archive import moves
from conclave.store.archive.restore import RestoreError
from conclave.store.faults import StoreError, is_of_the_disk
from conclave.system import data_folder, locks, reserve
from conclave.system.locks import DatabaseLock
from spark import apply, clock_mending, report, sql_engine
from spark.clock_mending import ClockUnsteadyError
from spark.hot import ArchiveError, Hot
from spark.java import Java
from spark.pacer import Pacer, RunTooLongError, WalBusyError, empty_wal
from spark.plan_types import GroupStep, Plan
from spark.report import Report
from spark.work import WorkFolder, remove_dead

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.archive.check import Check
    from spark.archive.run import Archive

log = get_logger(__name__)

Progress = Callable[[int, int], None]
"""Told again and again how many rows are gone, and how many will be."""


class CleanupError(Exception):
    """A run that could not begin; the message says what to do."""


class SparkStartError(CleanupError):
    """Spark did not start, for a reason that may pass."""


class ClockWrongError(Exception):
    """Nothing is erased by a clock that was found wrong."""


EXPECTED = (
    *(CleanupError, ClockWrongError, ClockUnsteadyError, ArchiveError, RestoreError),
    *(RunTooLongError, WalBusyError),
)
"""Why a run, or a command about the archive, may fail without a fault of the program."""


class Job:
    """Cleanup of one store by the configured engine; a Spark session is started once and stays warm."""

    def __init__(self, config: Config, clock: Clock) -> None:
        """Take the settings and the time; nothing is opened yet."""
        self._config = config
        self._clock = SteadyClock(clock)
        self._path = config.database
        self._spark: SparkSession | None = None
        self._knows_archive = False
        self._java = Java()
        self._work: WorkFolder | None = None
        self._lock: DatabaseLock | None = None

    def warm_up(self) -> None:
        """Start Spark if the engine is Spark. Raises CleanupError if there is no Java for it."""
        archive = self._uses_archive()
        if self._config.cleanup.engine != "spark":
            if archive:
                raise CleanupError('messages were moved to the archive, which needs [cleanup] engine = "spark"')
            return
        if self._spark:
            if archive and not self._knows_archive:
                raise CleanupError("the archive came into use after this process had started: restart the server")
            return
        from spark.session import (  # noqa: PLC0415 - the SQL engine needs no Spark
            DeployModeError,
            JarsMissingError,
            JavaMissingError,
            build_session,
        )

        try:
            with reserve.room(self._config):
                data_folder.prepare(self._config.data, self._path, self._config.archive_path)
                remove_dead(self._config.work)  # they may be what fills the disk
                self._work = WorkFolder(self._config.work)
                # Java holds both as long as it lives: what it has under way may outlive this process by a moment.
                held = self._work.descriptor, *self._open_lock().descriptors
                self._spark = build_session(self._config, self._work.path, self._java, held=held, archive=archive)
            self._knows_archive = archive
        except (data_folder.DataFolderError, JavaMissingError, JarsMissingError, DeployModeError) as error:
            raise CleanupError(str(error)) from error
        except OSError as error:
            raise SparkStartError(f"Spark could not start: {error}") from error
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            raise SparkStartError(
                f"Spark could not start: {reason} Is [spark] driver_memory right for this machine?"
            ) from error

    def close(self) -> None:
        """Stop Spark, end its Java process, and remove the work files."""
        self._stop_spark()
        if self._work:
            self._work.remove()
        if self._lock:
            self._lock.close()

    def abandon(self) -> None:
        """Do as ``close`` does, but end Java at once, whatever it does."""
        self._java.end()
        self.close()

    def halt(self) -> None:
        """Let Java write nothing more, and remove the work files; for a process that ends right after."""
        self._java.freeze()
        if self._work:
            self._work.remove()

    def _stop_spark(self) -> None:
        if self._spark and not self._java.has_ended():
            self._spark.stop()
        self._spark = None
        self._java.end()

    def is_sound(self) -> bool:
        """Tell whether the Spark session still answers; its Java process may have died."""
        if self._spark is None:
            return True
        try:
            return self._spark.range(1).count() == 1
        except Exception:  # noqa: BLE001 - py4j has many ways to say that nobody is there
            return False

    def run(
        self,
        *,
        accept_clock: bool = False,
        progress: Progress | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> Report:
        """Do one run, when no other is under way, and return its report, which is in the history too.

        ``tell`` hears "waiting" if another is, and "began". With ``accept_clock`` the clock counts as right from
        here on, and what is stored ahead of it is brought back. What went wrong in a run is in its report; raises
        CleanupError if it could not begin, or not end.
        """
        with self._ready() as settings, self._only_run(tell):
            tell("began")
            done = Report(self._config.cleanup.engine, self._clock.now())
            try:
                if accept_clock:
                    hot = self._hot(settings, done.started_at)
                    clock_mending.accept(hot, self._archive(hot), self._clock, done.brought_back)
                done.started_at = self._require_clock()
                self._clean_up(settings, done, progress)
            except EXPECTED as error:
                done.error = f"{type(error).__name__}: {error}"
            except Exception as error:
                if not is_of_the_disk(error):
                    log.exception("cleanup_failed", engine=done.engine)
                done.error = f"{type(error).__name__}: {error}"
            except BaseException:
                self._java.end()  # before anybody else has the lock: it may be writing yet
                self._stop_spark()
                raise
            self._empty_work(done)
            done.finished_at = self._clock.now()
            reach("report.before")
            with closing(database.connect(self._path)) as connection, database.write_transaction(connection):
                report.store(connection, done)
            reach("report.stored")
            return done

    def dry_run(self) -> Report:
        """Return what a run would delete, and touch nothing. Raises CleanupError."""
        with self._ready(writing=False) as settings:
            planned = Report(self._config.cleanup.engine, self._clock.now())
            plan = self._plan(settings, planned.started_at)
            with closing(database.connect(self._path, readonly=True)) as connection:
                groups = apply.groups_due(connection, plan)
                planned.groups_touched = len(groups)
                planned.counts = apply.count_plan(connection, plan)
                planned.error = state.look_at_clock(connection, self._clock.read())
            if archive := self._archive(self._hot(settings, planned.started_at)):
                archive.count(planned, groups, [(step.gone_below, step.group_key) for step in plan.groups])
            planned.finished_at = self._clock.now()
            return planned

    def verify_archive(self) -> "Check":
        """Read the whole archive while no run is under way, and return what differs from its index.

        Raises CleanupError and ArchiveError.
        """
        with self._archive_at_rest() as archive:
            return archive.check()

    def restore_archived(self, group_id: bytes) -> int:
        """Take a group's messages back from the archive; return how many. Raises any of EXPECTED."""
        with self._archive_at_rest() as archive:
            return archive.restore(group_id)

    @contextlib.contextmanager
    def _archive_at_rest(self) -> Iterator["Archive"]:
        """Hold the run lock, and yield the archive. Raises CleanupError if there is none."""
        with self._ready() as settings, self._only_run():
            archive = self._archive(self._hot(settings, self._clock.now()))
            if archive is None:
                raise CleanupError(f"{self._path}: nothing is archived")
            try:
                yield archive
            finally:
                if self._work:
                    self._work.empty()

    @contextlib.contextmanager
    def _ready(self, *, writing: bool = True) -> Iterator[PolicySettings]:
        """Check what a run needs, yield the settings it goes by, and tell what fails in one line."""
        try:
            with reserve.room(self._config) if writing else contextlib.nullcontext():
                database.require_current(self._path, writing=writing)
                settings = self._settings()
                self.warm_up()
            yield settings  # without: whoever waits for another run must not keep the reserve from being made again
        except OSError as error:
            raise CleanupError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error
        except (StoreError, sqlite3.Error) as error:
            raise CleanupError(str(error)) from error

    def _open_lock(self) -> DatabaseLock:
        """Return the lock on runs, which is opened once, since Java is to hold what it holds. Raises OSError."""
        if self._lock is None:
            self._lock = DatabaseLock(self._path, locks.CLEANUP)
        return self._lock

    @contextlib.contextmanager
    def _only_run(self, tell: Callable[[str], None] = lambda _: None) -> Iterator[None]:
        """Hold the lock that makes runs on a database one at a time, whoever starts them, and have room; waits for it.

        A process that is killed has it until its Java process is dead, too. Raises OSError.
        """

        def wait() -> None:
            log.info("waiting_for_another_run")
            tell("waiting")

        with self._open_lock().hold(wait), reserve.room(self._config):
            remove_dead(self._config.work)  # what of that cannot be removed is told in the end
            yield

    def _empty_work(self, done: Report) -> None:
        """Remove the files of this run, and what others left that ended meanwhile; the report tells what stayed."""
        try:
            if self._work:
                self._work.empty()
            left = remove_dead(self._config.work)
        except OSError as error:
            left = [str(error)]
        done.error = done.error or "; ".join(left)

    def _settings(self) -> PolicySettings:
        """Return the settings that the server runs with, and go on from its time: they decide, whoever runs."""
        with closing(database.connect(self._path, readonly=True)) as connection:
            stored = state.stored_policy(connection)
            self._clock.resume(state.standing(connection).floor, None)
        if stored is None:
            raise CleanupError(f"{self._path}: has not been served yet: start `conclave serve` on it first")
        if stored != self._config.policy:
            own = self._config.policy.to_mapping()
            differing = [name for name, value in stored.to_mapping().items() if own[name] != value]
            raise CleanupError(
                f"{', '.join(differing)}: this configuration differs from the one that the server last ran with;"
                " restart the server with it first, or use the server's"
            )
        return stored

    def _require_clock(self) -> int:
        """Return the second of the run, which is acted on from here on. Raises ClockWrongError."""
        with closing(database.connect(self._path)) as connection, database.write_transaction(connection):
            reading = self._clock.read()
            found = state.begin_run(connection, reading)
        self._clock.resume(found.floor, None if found.fault else reading)
        if found.fault:
            raise ClockWrongError(
                f"{found.fault}: nothing is erased until the clock is right and accepted by"
                " `conclave cleanup run --accept-clock`"
            )
        return self._clock.now()

    def _clean_up(self, settings: PolicySettings, done: Report, progress: Progress | None) -> None:
        deadline = time.monotonic() + self._config.cleanup.max_run_time
        plan = self._plan(settings, done.started_at)
        reach("plan.made")
        size = self._path.stat().st_size
        hot = self._hot(settings, done.started_at, deadline)
        try:
            with self._emptied(hot) as connection:
                groups = apply.groups_due(connection, plan)
                done.groups_touched = len(groups)
                total = apply.count_plan(connection, plan).total() if progress else 0
                tell = (lambda: progress(done.counts.total(), total)) if progress else (lambda: None)
                pacer = Pacer(connection, deadline, tell, lambda: hot.require(connection))
                apply.apply_plan(pacer, plan, settings, done.counts)
                apply.give_space_back(pacer)
            if archive := self._archive(hot):
                try:
                    archive.run(done, groups)
                finally:
                    with self._emptied(hot) as connection:
                        apply.give_space_back(Pacer(connection, deadline, require=lambda: hot.require(connection)))
        finally:
            done.bytes_returned = max(0, size - self._path.stat().st_size)

    @contextlib.contextmanager
    def _emptied(self, hot: Hot) -> Iterator[sqlite3.Connection]:
        """Open the store for deleting; in the end its write-ahead log is empty."""
        with closing(database.connect(hot.path)) as connection:
            try:
                yield connection
            finally:
                # After half a run too: what it deleted must not stay readable until the next one.
                empty_wal(connection)

    def _hot(self, settings: PolicySettings, now: int, deadline: float = float("inf")) -> Hot:
        return Hot(self._path, settings, now, deadline, lambda connection: _require_settings(connection, settings))

    def _archive(self, hot: Hot) -> "Archive | None":
        """Return the archive, if there is one or is to be one."""
        if not self._spark or not self._uses_archive():
            return None
        from spark.archive.run import Archive  # noqa: PLC0415 - as above

        return Archive(self._spark, hot, self._config.archive_path, self._config.archive)

    def _uses_archive(self) -> bool:
        """Tell whether messages are to move to the archive, or have moved there."""
        if self._config.archive.after != KEEP:
            return True
        if not self._path.exists():
            return False
        with closing(database.connect(self._path, readonly=True)) as connection:
            return moves.is_in_use(connection)

    def _plan(self, settings: PolicySettings, now: int) -> Plan:
        if self._spark:
            return _plan_with_spark(self._spark, self._path, settings, now)
        with closing(database.connect(self._path, readonly=True)) as connection:
            return sql_engine.make_plan(connection, settings, now)


def _require_settings(connection: sqlite3.Connection, settings: PolicySettings) -> None:
    """Stop a run that goes by settings which a server that was started meanwhile has replaced."""
    if state.stored_policy(connection) != settings:
        raise CleanupError("the server's settings changed during the run; the next one goes by the new ones")


def _plan_with_spark(spark: "SparkSession", path: Path, settings: PolicySettings, now: int) -> Plan:
    from spark import columns as c, plan, read  # noqa: PLC0415 - pyspark is only there for the Spark engine

    hot = read.read_hot(spark, path, settings, now)
    reach("plan.read")
    planned = plan.group_plan(hot.groups, hot.members).orderBy(c.GROUP_KEY)
    return Plan(
        now,
        [GroupStep(*row) for row in planned.collect()],
        hot.tombstones,
        hot.user_tombstones,
        _keys(plan.dead_sessions(hot.sessions, settings.sessions_dead_before(now))) if hot.sessions else [],
        _keys(plan.old_invites(hot.invites, settings.invites_dead_before(now))) if hot.invites else [],
    )


def _keys(frame: "DataFrame") -> list[int]:
    return sorted(row[0] for row in frame.collect())


def _main() -> None:
    os.umask(0o077)
    from conclave.cli.main import run_cleanup  # noqa: PLC0415 - which has this module by its own name

    run_cleanup()


if __name__ == "__main__":
    _main()
