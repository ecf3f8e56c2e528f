"""One cleanup run: read, plan, apply, erase, report."""

import contextlib
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from conclave.clock import Clock
from conclave.config import Config
from conclave.logs import get_logger
from conclave.policy import PolicySettings
from conclave.store import database, state
from spark import apply, report, sql_engine
from spark.report import Report
from spark.steps import GroupStep, Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = get_logger(__name__)


class CleanupError(Exception):
    """A run that could not begin; the message says what to do."""


class Job:
    """Cleanup of one store by the configured engine; a Spark session is started once and stays warm."""

    def __init__(self, config: Config, clock: Clock) -> None:
        """Take the settings and the time; nothing is opened yet."""
        self._config = config
        self._clock = clock
        self._spark: SparkSession | None = None
        self._work = config.work / str(os.getpid())

    def warm_up(self) -> None:
        """Start Spark if the engine is Spark. Raises CleanupError if there is no Java for it."""
        if self._config.cleanup.engine != "spark" or self._spark:
            return
        from spark.session import JavaMissingError, build_session  # noqa: PLC0415 - the SQL engine needs no Spark

        _empty_stale(self._config.work)
        self._work.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._spark = build_session(self._config, self._work)
        except JavaMissingError as error:
            raise CleanupError(str(error)) from error

    def close(self) -> None:
        """Stop Spark and remove the work files."""
        if self._spark:
            self._spark.stop()
            self._spark = None
        self.remove_work_files()

    def remove_work_files(self) -> None:
        """Remove the temporary files of this process."""
        shutil.rmtree(self._work, ignore_errors=True)

    def run(self) -> Report:
        """Do one run, when no other is under way, and return its report, which is in the history too.

        What went wrong in a run is in its report; raises CleanupError if it could not begin, or not end.
        """
        path = self._config.database
        try:
            database.prepare(path, create=False)
            self.warm_up()
            with run_lock(self._config.data):
                done = self._run(path, self._settings(path))
                with closing(database.connect(path)) as connection, database.write_transaction(connection):
                    report.store(connection, done)
                _empty_files(self._work)
        except (database.StoreError, sqlite3.Error, OSError) as error:
            raise CleanupError(str(error)) from error
        return done

    def _run(self, path: Path, settings: PolicySettings) -> Report:
        done = Report(self._config.cleanup.engine, self._clock.now())
        try:
            plan = self._plan(path, settings, done.started_at)
            done.groups_touched = len(plan.groups) + len(plan.tombstones)
            with closing(database.connect(path)) as connection:
                done.counts = apply.apply_plan(connection, plan, settings)
                done.bytes_returned = apply.erase_freed(connection, path)
        except Exception as error:
            log.exception("cleanup_failed", engine=done.engine)
            done.error = f"{type(error).__name__}: {error}"
        done.finished_at = self._clock.now()
        return done

    def _settings(self, path: Path) -> PolicySettings:
        """Return the settings that the server runs with: they decide, whoever starts the run."""
        with closing(database.connect(path)) as connection:
            stored = state.stored_policy(connection)
        if stored is None:
            raise CleanupError(f"{path}: has not been served yet: start `conclave serve` on it first")
        if stored != self._config.policy:
            own = self._config.policy.to_mapping()
            differing = [name for name, value in stored.to_mapping().items() if own[name] != value]
            raise CleanupError(
                f"{', '.join(differing)}: this configuration differs from the one that the server last ran with;"
                " restart the server with it first, or use the server's"
            )
        return stored

    def _plan(self, path: Path, settings: PolicySettings, now: int) -> Plan:
        if self._spark:
            return _plan_with_spark(self._spark, path, settings, now)
        with closing(database.connect(path)) as connection:
            return sql_engine.make_plan(connection, settings, now)


def _plan_with_spark(spark: "SparkSession", path: Path, settings: PolicySettings, now: int) -> Plan:
    from spark import columns as c, plan, read  # noqa: PLC0415 - pyspark is only there for the Spark engine

    hot = read.read_hot(spark, path, settings, now)
    planned = plan.group_plan(hot.groups, hot.members, hot.effective, now).orderBy(c.GROUP_KEY)
    return Plan(
        now,
        [GroupStep(*row) for row in planned.collect()],
        _keys(hot.tombstones, c.GROUP_KEY),
        _keys(plan.dead_sessions(hot.sessions, settings.sessions_dead_before(now)), c.SESSION_ID),
        _keys(plan.old_invites(hot.invites, settings.invites_dead_before(now)), c.INVITE_KEY),
    )


def _keys(frame: "DataFrame", column: str) -> list[int]:
    return sorted(row[0] for row in frame.select(column).collect())


@contextlib.contextmanager
def run_lock(data: Path) -> Iterator[None]:
    """Hold the lock that makes runs one at a time, whoever starts them; waits for it."""
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (data / "cleanup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _empty_stale(work: Path) -> None:
    """Remove what processes left that did not end by themselves."""
    for left in work.iterdir() if work.is_dir() else ():
        if not _runs(left.name):
            shutil.rmtree(left, ignore_errors=True)


def _runs(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        return True
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    return True


def _empty_files(work: Path) -> None:
    """Remove the files of a finished run; the folders stay, since a warm session goes on using them."""
    for path in work.rglob("*"):
        if path.is_file():
            path.unlink(missing_ok=True)
