"""Processes that die, in any order and at any time: nothing of theirs lives on, and nothing stays in a file."""

import asyncio
import contextlib
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
import pytest
from aiohttp import ClientError, ClientSession

from bench.process import children
from conclave.clock import SystemClock
from conclave.config.settings import Config
from conclave.store.engine import sqlite
from conclave.store.resources import state
from spark.work_folder import remove_dead
from tests.processes.test_kills import QUICK, read_all
from tests.support import stores
from tests.support.client import Client, RefusedError
from tests.support.forensics import StoreSearch
from tests.support.sample import amount, some
from tests.support.server import PATIENCE, USUAL_SIGNALS, ServerProcess, alive, conclave, links, waiting

ROOT = Path(__file__).parents[2]
SQL = '[cleanup]\nengine = "sql"\n'
ARCHIVE = '[archive]\nafter = "1s"\nmargin = "0"\nreclaim_interval = "0"\nreclaim_after = "0"\n'
OFTEN = 'cleanup_interval = "1s"\n'
WARM = '[cleanup]\nkeep_warm = "1y"\n'
"""Java stays as long as its server."""

ASLEEP = 'cleanup_interval = "3s"\n[cleanup]\nkeep_warm = "0"\n'
"""Between two runs there is nothing but the server, so most of the time Java is starting or ending."""

GONE_SECONDS = 20.0
"""All that belongs to a process that dies is gone by then: on a quiet machine at once, or within the time of a stop."""

DEATHS = (
    "server",
    "worker",
    "server and worker",
    "worker and server",
    "server, while the worker is stopped",
    "worker, while Java is stopped",
    "server by SIGTERM",
    "everything but Java by SIGTERM",
)

ROUNDS, LATEST_SECONDS = amount(4, 1), 8.0

FEW = amount(len(DEATHS), 1)
"""So many deaths has a round; where these are not all, one more that comes late and leaves files."""

LEAVING = "worker and server"
"""A worker whose server dies first has ended in order, without leaving a file, unless it is killed at once."""

EXPIRY = 4

PAUSE = """
import time
from conclave import failpoints
def pause(name):
    if name == "plan.made":
        print("in a run", flush=True)
        time.sleep(600)
failpoints.reach = pause
from conclave.cli.main import main
main()
"""
"""Commands, whose runs come as far as their plan."""


def processes_of(folder: Path) -> dict[int, str]:
    """All that run in a folder or were told of it: their ids and command lines."""
    mark = str(folder).encode()
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid() and alive(int(entry.name)):
                command = (entry / "cmdline").read_bytes()
                if mark in command + (entry / "environ").read_bytes() + os.fsencode((entry / "cwd").readlink()):
                    found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def expect_gone(left: Callable[[], object], what: object, within: float = GONE_SECONDS) -> None:
    """Wait until nothing is left, for as long as that may take."""
    deadline = time.monotonic() + within
    while still := left():
        assert time.monotonic() < deadline, f"{what}: left behind: {still}"
        time.sleep(0.02)


def javas(folder: Path) -> list[int]:
    """The Java processes in a folder; not the short ones that tell a version, or put the command together."""
    found = processes_of(folder).items()
    short = ("launcher.Main", " -version")
    return [pid for pid, told in found if "/java -cp" in told and not any(each in told for each in short)]


def kill(number: int, *pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_until_tied(worker: int) -> None:
    """Wait until a running worker has requested its parent death signal: see ``child_process``."""
    for _ in waiting("the worker's own program"):
        with contextlib.suppress(OSError):
            if alive(worker) and b"child_process.py" in Path(f"/proc/{worker}/cmdline").read_bytes():
                continue
        return


@dataclass
class Deaths:
    """One store that is served, talked into, and killed again and again."""

    folder: Path
    http: ClientSession
    settings: str
    search: StoreSearch = field(default_factory=StoreSearch)
    made: int = 0
    kept: set[int] = field(default_factory=set)  # numbers of bodies
    fleeting: dict[int, float] = field(default_factory=dict)  # the same, and the second at which each was sent
    left: int = 0  # so often a death left files

    def start(self) -> None:
        self.server = ServerProcess(self.folder, self.settings, command=QUICK)
        self.began = time.monotonic()

    async def begin(self) -> None:
        self.start()
        self.alice = await Client.register(self.http, self.server.wait_for("listening")["url"], "alice")
        self.keep = await self.alice.create_group("keep")
        self.expiring = await self.alice.create_group("expiring", expiry=EXPIRY)

    async def talk_until(self, deadline: float) -> None:
        """Send, whenever somebody listens."""
        while (left := deadline - time.monotonic()) > 0:
            urls = [event["url"] for event in self.server.events() if event.get("event") == "listening"]
            if urls:
                self.alice.url = urls[0]
                await self.send()
            await asyncio.sleep(min(left, 0.1))

    async def talk_until_at_work(self) -> None:
        """Send until a worker has made its folder, which it leaves where it is killed."""
        deadline = time.monotonic() + PATIENCE
        while not list(work_of(self.folder).glob("*")):
            assert time.monotonic() < deadline, "no worker has begun"
            await self.talk_until(time.monotonic() + 0.5)

    async def send(self) -> None:
        """Send some messages that stay, and some that go."""
        for _ in range(2):
            self.made += 2
            kept, fleeting = self.made - 1, self.made
            with contextlib.suppress(ClientError, ConnectionError, TimeoutError, RefusedError):
                await self.alice.send(self.keep, self.search.body(kept, 2000))
                self.kept.add(kept)
                self.fleeting[fleeting] = time.time()
                await self.alice.send(self.expiring, self.search.body(fleeting, 2000))
                self.fleeting[fleeting] = time.time()

    def die(self, what: str) -> None:
        """Have a death, and see that nothing lives on."""
        family = self.server.descendants()
        server = self.server.process.pid
        worker = next(iter(children(server)), 0)
        if what == "server, while the worker is stopped" and worker:
            wait_until_tied(worker)
        stopped = {"server, while the worker is stopped": [worker], "worker, while Java is stopped": javas(self.folder)}
        kill(signal.SIGSTOP, *filter(None, stopped.get(what, [])))
        victims = {
            "server": [server],
            "worker": [worker],
            "server and worker": [server, worker],
            "worker and server": [worker, server],
            "server, while the worker is stopped": [server],
            "worker, while Java is stopped": [worker],
            "server by SIGTERM": [server],
            "everything but Java by SIGTERM": [server, worker],
        }[what]
        kill(signal.SIGTERM if "SIGTERM" in what else signal.SIGKILL, *filter(None, victims))
        if server in victims:
            self.server.process.wait(GONE_SECONDS)
            expect_gone(lambda: processes_of(self.folder), what)
            self.left += bool(list((self.folder / "conclave.data").glob("work/*")))
        else:
            expect_gone(lambda: [pid for pid in family if alive(pid)], what)
            self.began = time.monotonic()  # the server starts another one

    def end(self) -> None:
        self.server.process.kill()
        self.server.process.wait()

    async def rest(self) -> None:
        """Have a good run, and see that what is left is what should be."""
        with ServerProcess(self.folder, self.settings, command=QUICK) as server:
            over = max(self.fleeting.values()) + EXPIRY + 1
            for _ in waiting("a good run"):
                runs = [event for event in server.events() if event.get("event") == "cleanup_run"]
                if any(run["started_at"] > over and not run["error"] for run in runs):
                    break
            self.alice.url = server.url
            served = {message.body for message in await read_all(self.alice, self.keep)}
            assert server.stop()[0] == 0
        expect_gone(lambda: processes_of(self.folder), "a stop")
        assert {self.search.body(number, 2000) for number in self.kept} <= served, "nothing acknowledged is lost"
        assert self.search.left_of(self.fleeting, self.folder) == set()
        assert not list((self.folder / "conclave.data" / "work").iterdir())


@pytest.mark.parametrize("settings", [OFTEN + ARCHIVE, ASLEEP], ids=["warm", "asleep"])
async def test_whoever_is_killed_whenever_nothing_lives_on_and_nothing_erased_stays(
    tmp_path: Path, settings: str
) -> None:
    """The time of each death counts from the start of the server, or of the worker that it starts after another.

    Where Java is asleep between runs, it is killed while it starts, while it works, and while it ends.
    """
    seed = int(os.environ.get("CONCLAVE_DEATHS", random.randrange(10**6)))
    say = sys.stdout.write  # shown if the test fails
    say(f"CONCLAVE_DEATHS={seed} has the same deaths again\n")
    chance = random.Random(seed)
    async with ClientSession() as http:
        history = Deaths(tmp_path, http, settings)
        await history.begin()
        try:
            for _ in range(ROUNDS):
                deaths = [(death, chance.uniform(0, LATEST_SECONDS)) for death in chance.sample(DEATHS, FEW)]
                if len(DEATHS) > FEW:
                    deaths.append((LEAVING, LATEST_SECONDS))
                for death, after in deaths:
                    say(f"{after:.1f} s: {death}\n")
                    await history.talk_until(history.began + after)
                    if after == LATEST_SECONDS:
                        await history.talk_until_at_work()
                    history.die(death)
                    if history.server.process.poll() is not None:
                        history.start()
                history.end()
                await history.rest()
                history.start()
        finally:
            history.end()
            kill(signal.SIGKILL, *processes_of(tmp_path))  # what a death has left fails the test, and goes with it
    say(f"{history.left} deaths left files\n")
    assert history.left, "some runs were hit"


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """A folder with a store, as it is after it was served. Its name is one that people choose."""
    folder = tmp_path / 'Alice\'s "100%" files'
    folder.mkdir()
    stores.prepare(folder / "conclave.db")
    stores.make_due(folder / "conclave.db")
    with contextlib.closing(sqlite.connect(folder / "conclave.db")) as connection:
        state.begin_serving(connection, Config().policy, SystemClock().read())
    (folder / "conclave.toml").touch()
    return folder


@contextlib.contextmanager
def by_hand(
    folder: Path, program: str = PAUSE, within: tuple[str, ...] = USUAL_SIGNALS
) -> Iterator[subprocess.Popen[str]]:
    """A cleanup by hand that is under way."""
    command = [*within, sys.executable, "-P", "-c", program, "cleanup", "run"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            kill(signal.SIGKILL, *processes_of(folder))


def wait_for_java(folder: Path) -> int:
    for _ in waiting("Java"):
        if found := javas(folder):
            return found[0]
    raise AssertionError


def expect_in_a_run(process: subprocess.Popen[str]) -> None:
    assert process.stdout
    assert process.stdout.readline() == "in a run\n"


def work_of(folder: Path) -> Path:
    return folder / "conclave.data" / "work"


@pytest.mark.parametrize("number", some([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP], 1, "ends of a run by hand"))
def test_a_cleanup_by_hand_that_is_ended_leaves_no_java(served: Path, number: signal.Signals) -> None:
    """Killed, it leaves its files to the next run, of whichever engine; otherwise it removes them."""
    with by_hand(served) as process:
        java = wait_for_java(served)
        if number == signal.SIGKILL:
            expect_in_a_run(process)
            (next(work_of(served).iterdir()) / "shuffle").write_text("a body")
        process.send_signal(number)
        expect_gone(lambda: processes_of(served), java)
        assert process.wait() == (-number if number == signal.SIGKILL else 128 + number)
    if number == signal.SIGKILL:
        (served / "conclave.toml").write_text(SQL)
        assert conclave("cleanup", "run", cwd=served).returncode == 0
    assert not list(work_of(served).iterdir())


def test_a_cleanup_in_a_terminal_that_closes_ends_cleanly(served: Path) -> None:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [*USUAL_SIGNALS, sys.executable, "-P", "-c", PAUSE, "cleanup", "run"],
        cwd=served,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - nothing but a system call
    )
    os.close(theirs)
    shown = b""
    while b"in a run" not in shown:
        shown += os.read(ours, 1000)
    assert javas(served)
    os.close(ours)
    process.wait(GONE_SECONDS)
    expect_gone(lambda: processes_of(served), "a terminal that closed")
    assert not list(work_of(served).iterdir())


def test_a_command_under_nohup_goes_on_when_its_terminal_closes(served: Path) -> None:
    (served / "conclave.toml").write_text(SQL)
    program = PAUSE.replace("time.sleep(600)", "while not __import__('os').path.exists('go'): time.sleep(0.05)")
    with by_hand(served, program, ("env", "--ignore-signal=HUP")) as process:
        expect_in_a_run(process)
        process.send_signal(signal.SIGHUP)
        (served / "go").touch()
        process.communicate()
        assert process.returncode == 0


def locks_of(pid: int, path: Path) -> list[bool]:
    """For each descriptor that a process has of a file: whether a lock is held by it."""
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.path.samestat(each.stat(), path.stat()):
                found.append("FLOCK" in Path(f"/proc/{pid}/fdinfo/{each.name}").read_text())
    return found


def connections(pid: int) -> set[str]:
    """The sockets and pipes that a process has open."""
    return {each for each in links(pid) if each.startswith(("socket:", "pipe:"))}


def test_java_holds_the_locks_of_its_run_and_inherits_nothing_else(served: Path) -> None:
    with ServerProcess(served, WARM) as server:
        server.wait_for("cleanup_run")
        java = wait_for_java(served)
        [work] = work_of(served).iterdir()
        run_lock = served / "conclave.db.cleanup-lock"
        assert locks_of(java, work) == [True]
        assert locks_of(java, run_lock) == [False], "none between two runs"
        shared = connections(server.process.pid) & connections(java)
        assert shared == set(), "no socket of the server, and no pipe"
        server.stop()
    stores.make_due(served / "conclave.db")
    with by_hand(served) as process:
        expect_in_a_run(process)
        assert locks_of(wait_for_java(served), run_lock) == [True]


UNTIED = PAUSE.replace("main()", "from spark import java; java.tied = lambda *each, **_: each; main()")
"""The same without what ends Java with it: as if that took long."""


def test_as_long_as_java_lives_no_other_run_begins_and_its_folder_stays(served: Path) -> None:
    with by_hand(served, UNTIED) as process, (served / "conclave.db.cleanup-lock").open("w") as lock:
        expect_in_a_run(process)
        java = wait_for_java(served)
        [work] = work_of(served).iterdir()
        kill(signal.SIGSTOP, java)
        process.kill()
        process.wait()
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_dead(work.parent)
        assert work.exists()
        kill(signal.SIGKILL, java)
        expect_gone(lambda: alive(java), "Java")
        fcntl.flock(lock, fcntl.LOCK_EX)

        def held() -> bool:
            """Tell whether the folder is in use yet: the system lets go of one lock after the other."""
            remove_dead(work.parent)
            return work.exists()

        expect_gone(held, "the lock on the folder")


def test_under_spark_submit_nothing_outlives_a_run_that_is_killed(served: Path) -> None:
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[1]"]
    settings = ["--conf", f"spark.pyspark.driver.python={sys.executable}"]
    env = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    job = str(ROOT / "spark" / "job.py")
    for victim in some(("Python", "Java"), 1, "who is killed under spark-submit"):
        with (served / "log").open("w") as log:
            submitted = subprocess.Popen([*submit, *settings, job], cwd=served, env=env, stdout=log, stderr=log)
        for _ in waiting("its folder"):
            if work_of(served).is_dir() and any(work_of(served).iterdir()):
                break
        java = wait_for_java(served)
        kill(signal.SIGKILL, java if victim == "Java" else children(java)[0])
        # That Java is not ours, and is given the time to end by itself that it takes on a busy machine.
        expect_gone(lambda: processes_of(served), victim, within=PATIENCE)
        submitted.wait()
    (served / "conclave.toml").write_text(SQL)
    assert conclave("cleanup", "run", cwd=served).returncode == 0
    assert not list(work_of(served).iterdir())


def test_a_java_that_is_killed_in_a_run_by_hand_is_told_in_its_report(served: Path) -> None:
    """As by the system, when memory is short."""
    program = PAUSE.replace('if name == "plan.made"', 'if name == "plan.read"').replace("600", "1")
    with by_hand(served, program) as process:
        expect_in_a_run(process)
        kill(signal.SIGKILL, wait_for_java(served))
        shown, _ = process.communicate()
        assert process.returncode == 1
        assert "Connection refused" in shown
    assert not list(work_of(served).iterdir())


def test_a_java_that_crashes_leaves_no_report_of_what_was_in_its_memory(served: Path) -> None:
    """Its report shows what the registers point at: that may be a message, which no run would ever erase there."""
    program = PAUSE.replace('if name == "plan.made"', 'if name == "plan.read"').replace("600", "1")
    with by_hand(served, program) as process:
        expect_in_a_run(process)
        java = wait_for_java(served)
        kill(signal.SIGSEGV, java)
        process.communicate()
        assert process.returncode == 1
        expect_gone(lambda: alive(java), "Java")
    assert not list(work_of(served).iterdir())
    assert not [*served.rglob(f"*{java}*"), *Path(tempfile.gettempdir()).glob(f"*{java}*")]


def test_a_java_that_is_killed_under_a_server_is_told_in_the_words_of_the_servers_log(tmp_path: Path) -> None:
    """Its client in Python has words of its own for that, with a traceback, and raises it all the same."""
    with ServerProcess(tmp_path, OFTEN + WARM, command=QUICK) as server:
        stores.make_due(tmp_path / "conclave.db")
        java = wait_for_java(tmp_path)
        for _ in waiting("its first run"):
            if any(sum(each["deleted"].values()) for each in server.events() if each["event"] == "cleanup_run"):
                break
        kill(signal.SIGSTOP, java)
        stores.make_due(tmp_path / "conclave.db")
        time.sleep(3)  # so that a run waits for its answer
        kill(signal.SIGKILL, java)
        server.wait_for("cleanup_worker_ended")
        assert server.stop()[0] == 0
    told = {str(event["event"]) for event in server.events()}
    documented = (ROOT / "docs" / "operations" / "logs.md").read_text()
    assert [each for each in told if f"`{each}`" not in documented] == []
    assert len(server.events()) == len((tmp_path / "server.log").read_text().splitlines()), "each line is an event"


def test_every_run_of_a_server_removes_what_dead_ones_left(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, OFTEN + SQL) as server:
        server.wait_for("cleanup_run")
        left, made = work_of(tmp_path) / str(os.getpid()), tmp_path / "made"
        made.mkdir()
        (made / "shuffle").write_text("a body")
        left.parent.mkdir(exist_ok=True)
        made.rename(left)  # at once: a run may remove it as soon as it is there
        for _ in waiting("the next run"):
            if not left.exists():
                break


def test_cleanup_begins_as_soon_as_its_folder_can_be_made(tmp_path: Path) -> None:
    """A folder that cannot be made, as on a full disk, ends no more than one try."""
    with ServerProcess(tmp_path, SQL) as server:
        assert server.stop()[0] == 0
    shutil.rmtree(work_of(tmp_path), ignore_errors=True)
    work_of(tmp_path).write_text("no folder")
    with ServerProcess(tmp_path, OFTEN) as server:
        reason = server.wait_for("cleanup_worker_ended")["reason"]
        assert reason.startswith("Spark could not start: ")
        work_of(tmp_path).unlink()
        server.wait_for("cleanup_run")


def test_cleanup_begins_as_soon_as_its_disk_is_there_and_java_starts(tmp_path: Path) -> None:
    """A worker that begins while the disk of its folder is away, or memory is short, is not the last one."""
    with ServerProcess(tmp_path, SQL) as server:
        assert server.stop()[0] == 0
    data, away, fault = tmp_path / "conclave.data", tmp_path / "away", tmp_path / "short"
    home = tmp_path / "java"
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    short = f"[ -e {fault} ] && echo 'Could not reserve enough space' >&2 && exit 1\n"
    java.write_text(f'#!/bin/sh\n{short}exec "{shutil.which("java")}" "$@"\n')
    java.chmod(0o755)
    fault.touch()
    with ServerProcess(tmp_path, OFTEN, env={"JAVA_HOME": str(home)}) as server:
        reason = server.wait_for("cleanup_worker_ended")["reason"]
        assert reason == f"{java} ended with status 1: Could not reserve enough space"
        data.rename(away)
        data.write_text("no folder")
        fault.unlink()
        for _ in waiting("a worker that finds no folder"):
            if any("is a file" in str(each.get("reason")) for each in server.events()):
                break
        data.unlink()
        away.rename(data)
        server.wait_for("cleanup_run")


def test_a_lock_that_was_replaced_is_no_lock(served: Path) -> None:
    (served / "conclave.toml").write_text(SQL)
    lock = served / "conclave.db.cleanup-lock"
    program = "from conclave.system.locks import DatabaseLock; from pathlib import Path; hold = DatabaseLock.hold\n"
    program += f"def replace(lock, wait): Path({str(lock)!r}).unlink(); return hold(lock, wait)\n"
    program += "DatabaseLock.hold = replace; from conclave.__main__ import main; main()"
    refused = subprocess.run(
        [sys.executable, "-P", "-c", program, "cleanup", "run"], cwd=served, capture_output=True, text=True
    )
    assert refused.returncode == 1
    assert f"\nconclave: {lock}: was removed or replaced" in refused.stderr


def test_a_server_outlives_its_terminal(tmp_path: Path) -> None:
    """SIGHUP has it read its settings again, also where it was started under nohup."""
    nohup = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); from conclave.__main__ import main; main()"
    with ServerProcess(tmp_path, SQL, command=("-c", nohup)) as server:
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("reloaded")
        assert server.process.poll() is None
        assert server.stop()[0] == 0
        assert not list(tmp_path.glob("conclave.db-*")), "neither a WAL nor its index is left"
