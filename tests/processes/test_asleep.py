"""Cleanup between runs that are far apart: nothing but the server is there, and all is done on time."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.processes.test_deaths import ASLEEP, expect_gone, javas, kill, processes_of, work_of
from tests.processes.test_kills import QUICK
from tests.support import stores
from tests.support.client import Client
from tests.support.failpoints import SLEEP_POINTS
from tests.support.forensics import StoreSearch
from tests.support.operators import ADMIN, ask, run_at_once
from tests.support.sample import some
from tests.support.server import PATIENCE, STOP_SECONDS, ServerProcess, conclave, waiting

DEBUG = '[log]\nlevel = "debug"\n'
IDLE_MB = 150.0
"""All processes together, with the default settings."""


def resident_mb(pid: int) -> float:
    line = next(each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / 1e6


def told(server: ServerProcess, event: str) -> list[dict[str, Any]]:
    return [each for each in server.events() if each.get("event") == event]


def deleted(server: ServerProcess) -> int:
    return sum(sum(run["deleted"].values()) for run in told(server, "cleanup_run"))


def wait_until_asleep(server: ServerProcess, times: int = 1) -> None:
    for _ in waiting("cleanup to fall asleep"):
        if len(told(server, "cleanup_asleep")) >= times and not server.descendants():
            return


def admin_url(server: ServerProcess) -> str:
    return str(told(server, "listening")[0]["admin_url"])


def status(server: ServerProcess) -> str:
    done = conclave("status", "--config", server.config, "--url", admin_url(server), cwd=server.folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_anything_due_no_java_is_started_and_asleep_is_not_broken(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, DEBUG, command=QUICK, admin=ADMIN) as server:
        wait_until_asleep(server)
        assert resident_mb(server.process.pid) < IDLE_MB
        assert processes_of(tmp_path).keys() == {server.process.pid}
        health = json.loads(ask(admin_url(server), "/healthz"))
        assert (health["status"], health["faults"], health["cleanup"]) == ("ok", {}, "asleep")
        assert json.loads(ask(admin_url(server), "/readyz")) == {"status": "ready"}
        assert "idle until the next run" in status(server)
        run_at_once(admin_url(server))
        wait_until_asleep(server, 2)
        assert [run["outcome"] for run in told(server, "cleanup_run")] == ["ok", "ok"]
        assert told(server, "cleanup_java_started") == []
        exit_status, seconds = server.stop()
        assert exit_status == 0
        assert seconds < STOP_SECONDS


def test_what_is_due_wakes_java_which_ends_with_its_files(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, DEBUG, command=QUICK, admin=ADMIN) as server:
        wait_until_asleep(server)
        for n in range(2):
            stores.make_due(tmp_path / "conclave.db")
            run_at_once(admin_url(server))
            for _ in waiting("Java"):
                if javas(tmp_path):
                    break
            wait_until_asleep(server, n + 2)
            assert deleted(server) == n + 1
            assert list(work_of(tmp_path).iterdir()) == []
        assert len(told(server, "cleanup_java_started")) == 2
        assert told(server, "cleanup_worker_ended") == []
        assert server.stop()[0] == 0


@pytest.mark.parametrize("point", some(SLEEP_POINTS, 1, "points of falling asleep"))
async def test_a_worker_that_is_killed_while_it_falls_asleep_leaves_nothing(tmp_path: Path, point: str) -> None:
    """Each of its successors is killed there, too. Java, which dies with its worker, is not needed for that."""
    search = StoreSearch()
    env = {"CONCLAVE_FAILPOINT": f"{point}=kill"}
    async with ClientSession() as http:
        with ServerProcess(tmp_path, ASLEEP + 'engine = "sql"\n', env, command=QUICK) as server:
            alice = await Client.register(http, server.url, "alice")
            keep, goes = await alice.create_group("keep"), await alice.create_group("goes", expiry=1)
            await alice.send(keep, search.body(0, 2000))
            await alice.send(goes, search.body(1, 2000))
            deadline = time.monotonic() + PATIENCE
            while not (deleted(server) and len(told(server, "cleanup_worker_ended")) > 1):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
            assert [each.body for each in await alice.fetch(keep)] == [search.body(0, 2000)]
            assert server.stop()[0] == 0
    expect_gone(lambda: processes_of(tmp_path), point)
    assert search.left_of([1], tmp_path) == set()


@pytest.fixture
def waking(tmp_path: Path) -> Iterator[tuple[ServerProcess, int]]:
    """A server whose worker is starting Java, and the id of the worker."""
    with ServerProcess(tmp_path, DEBUG, command=QUICK, admin=ADMIN) as server:
        wait_until_asleep(server)
        stores.make_due(tmp_path / "conclave.db")
        run_at_once(admin_url(server))
        worker = 0
        for _ in waiting("Java"):
            if javas(tmp_path):
                [worker] = [
                    pid for pid in server.descendants() if "spark.worker" in processes_of(tmp_path).get(pid, "")
                ]
                break
        yield server, worker
        kill(signal.SIGKILL, *processes_of(tmp_path))


@pytest.mark.parametrize("victim", some(("server", "worker", "Java", "server by SIGTERM"), 2, "deaths while it wakes"))
def test_whoever_dies_while_cleanup_wakes_nothing_is_left_and_the_run_is_done(
    waking: tuple[ServerProcess, int], victim: str
) -> None:
    server, worker = waking
    folder = server.folder
    kill(
        signal.SIGTERM if "SIGTERM" in victim else signal.SIGKILL,
        *{"worker": [worker], "Java": javas(folder)}.get(victim, [server.process.pid]),
    )
    if victim.startswith("server"):
        server.process.wait(PATIENCE)
        expect_gone(lambda: processes_of(folder), victim)
        server = ServerProcess(folder, DEBUG, command=QUICK, admin=ADMIN)
    for _ in waiting("the run"):
        if deleted(server):
            break
    for _ in waiting("its end"):
        if not server.descendants():
            break
    assert server.stop()[0] == 0
    expect_gone(lambda: processes_of(folder), victim)
    assert list(work_of(folder).iterdir()) == []
