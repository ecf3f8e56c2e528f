"""Cleanup runs in a process of their own, with one Spark session for all tests.

Run as a program it takes a line of JSON a run: the configuration, and the second at which the run takes
place.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from conclave import failpoints
from conclave.clock import FakeClock
from conclave.config.archive import ArchiveConfig
from conclave.config.settings import Config
from conclave.store import database
from spark import run
from spark.engine import Engine

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""No run of a test is long enough to be worth Java's better compiler, which takes half of the time here.

Without it Java has 48 MB for what it compiles: too little for Spark with Delta, so it throws code away again and again.
"""


class Cleaner:
    """Does runs at any time of one's choice."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        """``env``: that of a Java process that is warm already, see WarmJava; without it there will be a new one."""
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        """Where the session has its work files."""
        self._env = env or {"JDK_JAVA_OPTIONS": QUICK_JAVA}
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.cleaner", self._folder.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | self._env,
            text=True,
        )

    def run(self, config: Config, now: int, set_by: int = 0, *, batch_rows: int = 0, crowd: int = 0) -> dict[str, Any]:
        """Do a run and return its report; a run that failed or could not begin is an error."""
        report = self.try_run(config, now, set_by, batch_rows=batch_rows, crowd=crowd)
        assert not report["error"], report["error"]
        return report

    def try_run(
        self,
        config: Config,
        now: int,
        set_by: int = 0,
        *,
        accept_clock: bool = False,
        failpoint: str = "",
        batch_rows: int = 0,
        crowd: int = 0,
    ) -> dict[str, Any]:
        """Do a run; ``set_by``: see FakeClock; ``failpoint``: one to arm, as in the environment.

        ``batch_rows``: how many messages move to the archive at a time; ``crowd``: more small files of a part than
        that are compacted. Both as ever with 0.
        """
        task = {"config": config.to_json(), "clock": (now, set_by), "accept_clock": accept_clock}
        return self._ask(task | {"failpoint": failpoint, "batch_rows": batch_rows, "crowd": crowd})

    def kill_run(self, config: Config, now: int, point: str) -> None:
        """Do a run that is killed at a failpoint. With a Java process of its own that takes long to do again."""
        task = {"config": config.to_json(), "clock": (now, 0), "accept_clock": False, "batch_rows": 0, "crowd": 1}
        answer = self._tell(task | {"failpoint": f"{point}=kill"})
        assert not answer, f"{point} was not reached: {answer}"
        self._end()
        self._process = self._start()

    def dry_run(self, config: Config, now: int) -> dict[str, Any]:
        """Do a dry run and return its report."""
        return self._ask({"config": config.to_json(), "clock": (now, 0), "dry_run": True})

    def plan(self, config: Config, now: int) -> dict[str, Any]:
        """Return the plan of a run, and do not run."""
        return self._ask({"config": config.to_json(), "clock": (now, 0), "plan_only": True})

    def verify(self, config: Config, now: int) -> dict[str, Any]:
        """Verify the archive: return the fields of a Check, or an error."""
        return self._ask({"config": config.to_json(), "clock": (now, 0), "verify": True})

    def restore(self, config: Config, now: int, group_id: bytes, failpoint: str) -> dict[str, Any]:
        """Restore a group from the archive: return how many messages, or an error."""
        task = {"config": config.to_json(), "clock": (now, 0), "restore": group_id.hex()}
        return self._ask(task | {"failpoint": failpoint})

    def _ask(self, task: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self._tell(task))
        return told

    def _tell(self, task: dict[str, Any]) -> str:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def _end(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()

    def close(self) -> None:
        self._end()
        self._folder.cleanup()


def main() -> None:
    os.umask(0o077)  # as the commands do
    tell = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warm: Engine | None = None
    for line in sys.stdin:
        task = json.loads(line)
        config = Config.from_json(task["config"])
        if warm is None and config.cleanup.engine == "spark":
            end_former_session()
            # The session outlives each run's data directory, so its files lie elsewhere.
            database.prepare(Path(sys.argv[1], "warm.db"))
            warm = Engine(Config(database_path=f"{sys.argv[1]}/warm.db", archive=ArchiveConfig(after=1)), FakeClock())
            warm.warm_up()
        try:
            told = _do(task, _engine(config, FakeClock(*task["clock"]), warm))
        except run.EXPECTED as error:
            told = {"error": str(error), "refused": True}
        tell.write(json.dumps(told, default=bytes.hex) + "\n")
    if warm:
        warm.close()


def end_former_session() -> None:
    """End the session of a process that was killed, where its Java process is this one's too.

    And have Java forget where that one's files lay: files of this process must not lie in a folder that is not its own.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return
    SparkContext._ensure_initialized()
    java = SparkContext._jvm
    assert java
    left = java.org.apache.spark.sql.classic.SparkSession.getDefaultSession()
    if left.isDefined():
        left.get().stop()
    java.java.lang.Class.forName("org.apache.spark.util.Utils$").getField("MODULE$").get(None).clearLocalRootDirs()


def _engine(config: Config, clock: FakeClock, warm: Engine | None) -> Engine:
    engine = Engine(config, clock)
    if warm and config.cleanup.engine == "spark":
        engine._spark, engine._knows_archive, engine._work = warm._spark, warm._knows_archive, warm._work
    return engine


def _do(task: dict[str, Any], engine: Engine) -> dict[str, Any]:
    if "plan_only" in task:
        engine.warm_up()
        return asdict(engine.make_plan(engine.config.policy, task["clock"][0]))
    if "dry_run" in task:
        return run.dry_run(engine).to_mapping()
    if "verify" in task:
        return asdict(run.verify_archive(engine))
    failpoints.arm(task["failpoint"])
    if "restore" in task:
        return {"restored": run.restore_archived(engine, bytes.fromhex(task["restore"]))}
    with _scaled_down(task["batch_rows"], task["crowd"]):
        return run.clean_up(engine, accept_clock=task["accept_clock"]).to_mapping()


@contextmanager
def _scaled_down(batch_rows: int, crowd: int) -> Iterator[None]:
    """Let few messages and files be many, where that is asked for."""
    if not (batch_rows or crowd):
        yield
        return
    from spark.archive import move, table  # most runs need no Spark

    usual = move.BATCH_ROWS, table.FEW_FILES
    move.BATCH_ROWS, table.FEW_FILES = batch_rows or usual[0], crowd or usual[1]
    try:
        yield
    finally:
        move.BATCH_ROWS, table.FEW_FILES = usual


if __name__ == "__main__":
    main()
