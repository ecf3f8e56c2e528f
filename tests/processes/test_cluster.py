"""The same job on a cluster: a master and workers of Spark's own, started on loopback as the page on clusters says."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from bench.clusters import QUICK, Cluster, Daemon
from bench.process import descendants
from conclave.system.child_process import parent_bound_command
from spark.requirements import RequirementError
from spark.session import _require_submitted, _settings
from tests.support.archived import DAY, USERS, Store
from tests.support.cleaner import Cleaner
from tests.support.sample import amount, is_all
from tests.support.server import PATIENCE, links, waiting

ROOT = Path(__file__).parents[2]
GROUPS, DAYS = 60, 40
OLDEST = 60
"""So many days ago the first message was sent; the last one, DAYS later."""

CUT = 40
"""Messages older than so many days go from a group whose expiry is shortened to that."""

PORTS = {*range(7077, 7077 + 3), *range(7080, 7080 + 3 + 16), *range(7090, 7090 + 2 + 16)}
"""Where something may listen by the page: its ports, and the next ones where these are taken."""

LONG = 10 * PATIENCE
"""Seconds. A run has five cold Java processes, which share the cores with other tests."""

Submit = Callable[[Store], "subprocess.CompletedProcess[str]"]


def configure(store: Store, file: Path, more: str = "") -> Path:
    archive = '[archive]\nafter = "7d"\nmargin = "1d"\nreclaim_interval = "0"\nreclaim_after = "0"\n'
    file.write_text(f'database_path = "{store.config.database}"\n{archive}{more}')
    return file


def submit_here(store: Store) -> "subprocess.CompletedProcess[str]":
    """Do a run as spark-submit has it done: with a Java process that was there before."""
    config = configure(store, store.folder / "conclave.toml")
    return subprocess.run(
        [sys.executable, str(ROOT / "spark" / "job.py"), "--config", str(config)],
        cwd=store.folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | store.cleaner.lend().env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@contextlib.contextmanager
def submitting(cluster: Cluster, folder: Path, store: Store) -> Iterator["subprocess.Popen[bytes]"]:
    """A run by the page's own command, which ends with the block if it has not ended by itself."""
    configure(store, cluster.settings.parent / "config.toml")
    with (folder / "run.log").open("wb") as log:
        # Nobody else would end it if this process died: it waits for a cluster that is gone.
        command = parent_bound_command(
            "bash", "-euo", "pipefail", "-c", cluster.script("run", folder), death_signal=signal.SIGTERM
        )
        run = subprocess.Popen(command, cwd=folder, env=cluster.environment, stdout=log, stderr=log)
    try:
        yield run
    finally:
        if run.poll() is None:
            for pid in processes_of(run.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            run.wait()


def submit(store: Store, cluster: Cluster, folder: Path) -> "subprocess.CompletedProcess[str]":
    with submitting(cluster, folder, store) as run:
        status = run.wait(LONG)
    return subprocess.CompletedProcess(run.args, status, (folder / "run.log").read_text(), "")


@pytest.mark.parametrize("where", ["here", "cluster"] if is_all() else ["here"])
def test_what_is_submitted_moves_and_erases_as_the_local_session_does(
    tmp_path: Path, cleaner: Cleaner, where: str
) -> None:
    if where == "here":
        move_and_erase(tmp_path, cleaner, submit_here)
        return
    with Cluster(tmp_path / "cluster", 1, java=QUICK) as cluster:
        move_and_erase(tmp_path, cleaner, partial(submit, cluster=cluster, folder=tmp_path))
        assert tasks_of(cluster.daemons[1]) > 5, "executors worked"


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


def test_where_no_worker_is_left_a_run_by_hand_ends_and_says_so(tmp_path: Path, cleaner: Cleaner) -> None:
    (tmp_path / "store").mkdir()
    store = Store(tmp_path / "store", cleaner)
    due = store.add_group(expiry=DAY)
    store.now = int(time.time()) - 2 * DAY
    store.send(due, 3)
    with Cluster(tmp_path / "cluster", 0, java=QUICK) as cluster:
        more = f'[cleanup]\nmax_run_time = "1s"\n[spark]\nmaster = "{cluster.master}"\n'
        config = configure(store, tmp_path / "conclave.toml", more)
        done = subprocess.run(
            [sys.executable, "-P", "-m", "conclave", "cleanup", "run", "--config", str(config)],
            cwd=ROOT,
            env=cluster.environment | {"SPARK_CONF_DIR": str(cluster.settings), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=LONG,
        )
    assert done.returncode == 1
    assert "RunTooLongError: max_run_time (1s) was over, and Spark did not" in " ".join(done.stdout.split()), done
    assert "Traceback" not in done.stderr


def test_the_commands_of_the_page_bear_a_worker_that_dies_in_the_middle_of_a_rewrite(
    tmp_path: Path, cleaner: Cleaner
) -> None:
    """Messages move, expire and are purged here and there, and a worker is killed while it rewrites what stays."""
    (tmp_path / "store").mkdir()
    store = Store(tmp_path / "store", cleaner)
    groups = fill(store, each=amount(300_000, 9_600) // GROUPS // DAYS)
    with Cluster(tmp_path / "cluster", 2, java=QUICK) as cluster:
        secret = cluster.settings / "spark-defaults.conf"
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        moved = submit(store, cluster, tmp_path)
        assert moved.returncode == 0, moved.stdout
        assert len(store.table()) == len(store.made)
        for worker in cluster.daemons[1:]:
            expect_empty(worker.folder / "local")
        gone = decide(store, groups)
        with submitting(cluster, tmp_path, store) as run:
            expect_documented(cluster, run)
            killed = kill_one_that_rewrites(cluster, store.config.archive_path, run)
            assert run.wait(LONG) == 0, (tmp_path / "run.log").read_text()
        assert all(tasks_of(worker) for worker in cluster.daemons[1:])
        store.now = int(time.time())
        store.expect_served(set(store.made) - gone)
        store.expect_sound()
        files = set(store.config.archive_path.glob("lifetime=*/span=*/*"))
        assert files == {store.config.archive_path / name for name in table_files(store)}
        assert (killed.folder / "local").is_dir(), "what the killed worker had is searched, too"
        erased = {store.made[each] for each in gone}
        assert store.search.left_of(erased, store.folder, tmp_path / "cluster") == set()
    assert store.search.left_of(erased, tmp_path) == set(), "nor when all have ended"


def fill(store: Store, each: int) -> list[list[int]]:
    """Have ``each`` messages sent to each group on each day; return the groups, by what will become of them."""
    now = store.now = int(time.time())
    classes = [-1, 90 * DAY, 80 * DAY]
    groups = [[store.add_group(expiry) for _ in range(GROUPS // len(classes))] for expiry in classes]
    for day in range(DAYS):
        store.now = now - (OLDEST - day) * DAY + DAY // 2
        with store.opened() as connection:
            for group in (group for those in groups for group in those):
                for number in range(each):
                    sender = USERS[1] if (day + number) % 20 == 0 else USERS[0]
                    store.append(connection, group, 300, sender)
    store.now = now
    return groups


def decide(store: Store, groups: list[list[int]]) -> set[tuple[int, int]]:
    """Let half of what one class has expire, the same in a fifth of another's groups, and an account go.

    Returns what is to be erased: spans as a whole, rows of some groups, and rows of one sender in all groups.
    """
    _, some, expiring = groups
    shortened = {*some[::5], *expiring}
    for group in shortened:
        store.set_expiry(group, CUT * DAY)
    store.delete_account(USERS[1])
    rows = store.table().select(["group_key", "sequence_num", "created_at", "sender_id"]).to_pylist()
    return {
        (row["group_key"], row["sequence_num"])
        for row in rows
        if row["sender_id"] == USERS[1] or (row["group_key"] in shortened and row["created_at"] < store.now - CUT * DAY)
    }


def kill_one_that_rewrites(cluster: Cluster, archive: Path, run: "subprocess.Popen[bytes]") -> Daemon:
    """Kill a worker, and its executor, while it has a new file of the archive open."""
    before = {str(path) for path in archive.rglob("*.parquet")}
    while run.poll() is None:
        for worker in cluster.daemons[1:]:
            if any(name.startswith(str(archive)) and name not in before for name in open_files(worker)):
                worker.kill()
                assert run.poll() is None, "it was in the middle"
                return worker
    raise AssertionError("no worker was seen at rewriting")


def expect_documented(cluster: Cluster, run: "subprocess.Popen[bytes]") -> None:
    """Nothing listens but what the page names, also when executors do, and the secret is on no command line."""
    lines = (cluster.settings / "spark-defaults.conf").read_text().splitlines()
    (secret,) = [line.split()[1] for line in lines if line.startswith("spark.authenticate.secret ")]
    daemons: list[int] = []
    for _ in waiting("an executor of each worker"):
        assert run.poll() is None, "the run ended before"
        daemons = [pid for daemon in cluster.daemons for pid in processes_of(daemon.process.pid)]
        if sum(port >= 7080 for _, port in listening(daemons)) >= len(cluster.daemons) + len(cluster.daemons[1:]):
            break
    driver = processes_of(run.pid)
    assert all(secret not in command_line(pid) for pid in (*daemons, *driver))
    assert {port for _, port in listening(daemons)} <= PORTS
    assert {first for first, _ in listening([*daemons, *driver])} == {127}


def processes_of(pid: int) -> list[int]:
    return [pid, *descendants(pid)]


def command_line(pid: int) -> str:
    """Nothing if it has ended: the programs that Java's start asks live for a moment."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def open_files(worker: Daemon) -> list[str]:
    return [name for pid in processes_of(worker.process.pid)[1:] for name in links(pid) if name.endswith(".parquet")]


def listening(pids: Sequence[int]) -> list[tuple[int, int]]:
    """The first byte of the address, and the port, of all at which processes listen."""
    own = {name for pid in pids for name in links(pid) if name.startswith("socket:")}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            address, _, port = fields[1].rpartition(":")
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.append((int(address[-2:], 16), int(port, 16)))
    return found


def expect_empty(local: Path) -> None:
    """What an application had on a worker's disk goes with it."""
    for _ in waiting(f"nothing left in {local}"):
        if not [path for path in local.rglob("*") if path.is_file()]:
            return


def tasks_of(worker: Daemon) -> int:
    logs = (worker.folder / "work").glob("app-*/*/stderr")
    return sum(log.read_text().count("Finished task") for log in logs)


def table_files(store: Store) -> list[str]:
    return [uri.rpartition("/archive/")[2] for uri in DeltaTable(str(store.config.archive_path)).file_uris()]


def test_a_driver_inside_the_cluster_is_refused() -> None:
    with pytest.raises(RequirementError, match="on the server's host"):
        _require_submitted({"spark.submit.deployMode": "cluster"}, archive=False)


def test_what_executors_keep_on_their_disks_is_encrypted_and_tasks_are_as_many_as_cores(tmp_path: Path) -> None:
    settings = _settings("spark://10.0.0.5:7077", "10.0.0.5", tmp_path)
    assert settings["spark.io.encryption.enabled"] == "true"
    assert "spark.default.parallelism" not in settings, "Spark counts the cores of the executors"
    assert _settings("local[3]", "127.0.0.1", tmp_path)["spark.default.parallelism"] == "3"
