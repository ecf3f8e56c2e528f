"""The same job on a cluster: a master and a worker of Spark's own, on loopback."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyspark
import pytest

from spark.session import JARS, DeployModeError, _require_submitted
from tests.support.archived import DAY, Store
from tests.support.cleaner import Cleaner
from tests.support.sample import is_all
from tests.support.server import PATIENCE, waiting

SPARK = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[2]
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ENV = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
HERE = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]


@contextlib.contextmanager
def daemon(folder: Path, name: str, *arguments: str) -> Iterator[Path]:
    """One of Spark's; yields its log, and ends it and no other."""
    log = folder / f"{name}.log"
    command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name.lower()}.{name}", *HERE, *arguments]
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=folder, env=ENV, stdout=output, stderr=output)
    try:
        yield log
    finally:
        process.terminate()
        process.wait(PATIENCE)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Yield the address of a master that has a worker, whose work files are in ``folder``/work."""
    with daemon(folder, "Master") as master:
        url = find(master, r"Starting Spark master at (\S+)")
        arguments = ["--cores", "2", "--memory", "1g", "--work-dir", str(folder / "work"), url]
        with daemon(folder, "Worker", *arguments) as worker:
            find(worker, r"(Successfully registered) with master")
            yield url


def find(log: Path, pattern: str) -> str:
    for _ in waiting(f"{pattern} in {log.name}"):
        if found := re.search(pattern, log.read_text()):
            return found[1]
    raise AssertionError


Submit = Callable[[Store], subprocess.CompletedProcess[str]]


def configure(store: Store) -> Path:
    config = store.folder / "conclave.toml"
    config.write_text(f'database_path = "{store.config.database}"\n[archive]\nafter = "7d"\nmargin = "1d"\n')
    return config


def submit_here(store: Store) -> subprocess.CompletedProcess[str]:
    """Do a run as spark-submit has it done: with a Java process that was there before."""
    return subprocess.run(
        [sys.executable, str(ROOT / "spark" / "job.py"), "--config", str(configure(store))],
        cwd=store.folder,
        env=ENV | store.cleaner.lend().env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def submit(store: Store, master: str) -> subprocess.CompletedProcess[str]:
    """Do a run by spark-submit; executors could not start a Python if they wanted to."""
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.executor.extraJavaOptions": QUICK,
        "spark.pyspark.driver.python": sys.executable,
        "spark.pyspark.python": str(store.folder / "no-python"),
    }
    return subprocess.run(
        [
            *[
                str(SPARK / "bin" / "spark-submit"),
                "--master",
                master,
                "--jars",
                ",".join(map(str, JARS.glob("*.jar"))),
            ],
            *[each for name, value in settings.items() for each in ("--conf", f"{name}={value}")],
            *[str(ROOT / "spark" / "job.py"), "--config", str(configure(store))],
        ],
        cwd=store.folder,
        env=ENV,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize("where", ["here", "cluster"] if is_all() else ["here"])
def test_what_is_submitted_moves_and_erases_as_the_local_session_does(
    tmp_path: Path, cleaner: Cleaner, where: str
) -> None:
    if where == "here":
        move_and_erase(tmp_path, cleaner, submit_here)
        return
    with cluster(tmp_path) as master:
        move_and_erase(tmp_path, cleaner, partial(submit, master=master))
    logs = [log.read_text() for log in (tmp_path / "work").glob("app-*/*/stderr")]
    assert sum(log.count("Finished task") for log in logs) > 5, "executors worked"


def move_and_erase(folder: Path, cleaner: Cleaner, submitted: Submit) -> None:
    (folder / "store").mkdir()
    store = Store(folder / "store", cleaner)
    now = int(time.time())
    kept, shortened, other = store.add_group(), store.add_group(expiry=60 * DAY), store.add_group(expiry=60 * DAY)
    store.now = now - 20 * DAY
    for group in (kept, shortened, other):
        store.send(group, 20)
    store.now = now
    store.run()
    assert len(store.table()) == 60
    store.now = now - 9 * DAY
    store.send(kept, 30)
    store.now = now
    store.send(kept, 5)
    store.set_expiry(shortened, 12 * DAY)
    done = submitted(store)
    assert done.returncode == 0, done.stdout + done.stderr
    store.now = int(time.time())
    store.expect_served({(kept, n) for n in range(1, 56)} | {(other, n) for n in range(1, 21)})
    store.expect_erased({(shortened, n) for n in range(1, 21)})
    store.expect_sound()
    assert len(store.table()) == 70, "moved: 30; erased: 20"
    archive = store.config.archive_path
    assert {path.stat().st_mode & 0o077 for path in (archive, *archive.rglob("*"))} == {0}


def test_a_driver_inside_the_cluster_is_refused() -> None:
    with pytest.raises(DeployModeError, match="on the server's host"):
        _require_submitted({"spark.submit.deployMode": "cluster"}, archive=False)
