"""Cleanup runs in a process of their own, with one Spark session for all tests.

Run as a program it takes a line of JSON a run: the configuration, and the second at which the run takes
place.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conclave import failpoints
from conclave.clock import FakeClock
from conclave.config.archive import ArchiveConfig
from conclave.config.settings import Config
from conclave.retention.jobs import ALL, PurgeJob, Scope
from conclave.store.engine import schema
from spark import readiness, run
from spark.environment import RunEnvironment
from spark.rehearsal import rehearse
from tests.support.server import PATIENCE
from tests.support.warm_java import WarmJava, end_former_session


class Cleaner:
    """Does runs at any time of one's choice."""

    def __init__(self) -> None:
        """Start nothing yet: most that only use the SQL engine need no Java."""
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        """Where the session and its Java process have their work files."""
        self._java: WarmJava | None = None
        self._process: subprocess.Popen[str] | None = None
        self._knows_java = False

    def lend(self) -> WarmJava:
        """Let others have the Java process, which forgets who had it; a run after that begins with a session anew."""
        self._end()
        java = self._warm()
        java.forget()
        return java

    def _warm(self) -> WarmJava:
        if self._java is None:
            self._java = WarmJava(self.folder / "java").__enter__()
        return self._java

    def _started(self, *, needs_java: bool) -> "subprocess.Popen[str]":
        if self._process and needs_java and not self._knows_java:
            self._end()
        if self._process is None:
            self._knows_java = needs_java
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.cleaner", self._folder.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | (self._warm().env if needs_java else {}),
                text=True,
            )
        return self._process

    def run(
        self,
        config: Config,
        now: int,
        set_by: int = 0,
        *,
        scope: Scope = ALL,
        batch_rows: int = 0,
        crowd: int = 0,
    ) -> dict[str, Any]:
        """Do a run and return its report; a run that failed or could not begin is an error."""
        report = self.try_run(config, now, set_by, scope=scope, batch_rows=batch_rows, crowd=crowd)
        assert not report["error"], report["error"]
        return report

    def try_run(
        self,
        config: Config,
        now: int,
        set_by: int = 0,
        *,
        scope: Scope = ALL,
        accept_clock: bool = False,
        failpoint: str = "",
        batch_rows: int = 0,
        crowd: int = 0,
        plant: str = "",
    ) -> dict[str, Any]:
        """Do a run; ``set_by``: see FakeClock; ``failpoint``: one to arm, as in the environment.

        ``batch_rows``: how many messages move to the archive at a time; ``crowd``: more small files of a part than
        that are compacted. Both as ever with 0. ``plant``: a fault of ``tests.support.planted`` that the run has.
        """
        task = {"config": config.to_json(), "clock": (now, set_by), "accept_clock": accept_clock}
        task |= {"scope": asdict(scope), "plant": plant}
        return self._ask(task | {"failpoint": failpoint, "batch_rows": batch_rows, "crowd": crowd})

    def kill_run(self, config: Config, now: int, point: str) -> None:
        """Do a run that is killed at a failpoint; the Java process lives on."""
        task = {"config": config.to_json(), "clock": (now, 0), "accept_clock": False, "batch_rows": 0, "crowd": 1}
        answer = self._tell(task | {"failpoint": f"{point}=kill"})
        assert not answer, f"{point} was not reached: {answer}"
        self._end()

    def dry_run(self, config: Config, now: int) -> dict[str, Any]:
        """Do a dry run and return its report."""
        return self._ask({"config": config.to_json(), "clock": (now, 0), "dry_run": True})

    def plan(self, config: Config, now: int, scope: Scope = ALL) -> dict[str, Any]:
        """Return the plan of a run, and do not run."""
        task = {"config": config.to_json(), "clock": (now, 0), "scope": asdict(scope)}
        return self._ask(task | {"plan_only": True})

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
        process = self._started(needs_java=Config.from_json(task["config"]).cleanup.engine == "spark")
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        return process.stdout.readline()

    def _end(self) -> None:
        if process := self._process:
            assert process.stdin
            assert process.stdout
            process.stdin.close()
            process.wait(PATIENCE)
            process.stdout.close()
            self._process = None

    def close(self) -> None:
        self._end()
        if self._java:
            self._java.__exit__()
        self._folder.cleanup()


def main() -> None:
    os.umask(0o077)  # as the commands do
    tell = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warm: RunEnvironment | None = None
    for line in sys.stdin:
        task = json.loads(line)
        config = Config.from_json(task["config"])
        if warm is None and config.cleanup.engine == "spark":
            end_former_session()
            # The session outlives each run's data directory, so its files lie elsewhere.
            schema.prepare(Path(sys.argv[1], "warm.db"))
            warm = RunEnvironment(
                Config(database_path=f"{sys.argv[1]}/warm.db", archive=ArchiveConfig(after=1)), FakeClock()
            )
            warm.warm_up()
        try:
            told = _do(task, _engine(config, FakeClock(*task["clock"]), warm))
        except readiness.EXPECTED as error:
            told = {"error": str(error), "refused": True}
        tell.write(json.dumps(told, default=bytes.hex) + "\n")
    if warm:
        warm.close()


def _engine(config: Config, clock: FakeClock, warm: RunEnvironment | None) -> RunEnvironment:
    engine = RunEnvironment(config, clock)
    if warm and config.cleanup.engine == "spark":
        engine._spark, engine._knows_archive, engine._work = warm._spark, warm._knows_archive, warm._work
    return engine


def _do(task: dict[str, Any], engine: RunEnvironment) -> dict[str, Any]:
    if "plan_only" in task:
        engine.warm_up()
        return asdict(engine.make_plan(engine.config.policy, task["clock"][0], _scope(task)))
    if "dry_run" in task:
        return rehearse(engine).to_mapping()
    if "verify" in task:
        with readiness.archive_at_rest(engine) as archive:
            return asdict(archive.check())
    failpoints.arm(task["failpoint"])
    if "restore" in task:
        with readiness.archive_at_rest(engine) as archive:
            return {"restored": archive.restore(bytes.fromhex(task["restore"]), readiness.spare_bytes(engine))}
    with _scaled_down(task["batch_rows"], task["crowd"]), _planted(task.get("plant", "")):
        return run.clean_up(engine, scope=_scope(task), accept_clock=task["accept_clock"]).to_mapping()


def _scope(task: dict[str, Any]) -> Scope:
    if "scope" not in task:
        return ALL
    told = task["scope"]
    return Scope(**told | {"job": told["job"] and PurgeJob(**told["job"])})


@contextmanager
def _planted(fault: str) -> Iterator[None]:
    """Have a fault for a block, if one is named."""
    if not fault:
        yield
        return
    import pytest  # most runs need neither

    from tests.support.planted import FAULTS

    with pytest.MonkeyPatch.context() as patch:
        FAULTS[fault](patch)
        yield


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
