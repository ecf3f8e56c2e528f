"""What operators do: look at health and history, try a dry run, end what hangs, look for open ports."""

import asyncio
import fcntl
import os
import signal
import time
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest
from aiohttp import ClientError, ClientSession

from conclave.actions.messages import append
from conclave.store.engine import sqlite
from tests.support import stores
from tests.support.client import Client, RefusedError
from tests.support.memberships import member_of
from tests.support.server import ServerProcess, conclave, links, waiting

SQL = '[cleanup]\nengine = "sql"\n'


async def test_the_admin_listener_tells_what_is_wrong_and_what_cleanup_did(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        server.wait_for("cleanup_run")
        async with ClientSession() as http:
            url = server.wait_for("listening")["admin_url"]
            response = await http.get(f"{url}/healthz")
            told = await response.json()
            assert (response.status, told["status"], told["faults"]) == (200, "ok", {})
            assert told["last_run"]["outcome"] == "ok"
            assert (await http.get(f"{server.url}/api/v1/admin")).status == 404


async def test_the_admin_listener_is_red_without_java(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, env={"PATH": str(tmp_path), "JAVA_HOME": ""}) as server:
        server.wait_for("cleanup_unavailable")
        async with ClientSession() as http:
            response = await http.get(f"{server.wait_for('listening')['admin_url']}/healthz")
            assert response.status == 503
            assert "Java" in (await response.json())["faults"]["cleanup"]


async def test_dry_run_and_history_by_hand(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        server.wait_for("cleanup_run")
        async with ClientSession() as http:
            alice = await Client.register(http, server.url, "alice")
            group = await alice.create_group("g", expiry=1)
            await alice.send(group)
            await asyncio.sleep(2.1)
        dry = conclave("cleanup", "run", "--dry-run", "--config", server.config, cwd=tmp_path)
        assert dry.returncode == 0, dry.stderr
        assert "nothing was changed" in dry.stdout
        assert count_of(dry.stdout, "older than the group's expiry") == "1"
        for expected in ("1", "0"):
            run = conclave("cleanup", "run", "--config", server.config, cwd=tmp_path)
            assert count_of(run.stdout, "older than the group's expiry") == expected
        both = conclave("cleanup", "run", "--dry-run", "--accept-clock", "--config", server.config, cwd=tmp_path)
        assert both.returncode == 2
        shown = conclave("cleanup", "history", "--config", server.config, cwd=tmp_path)
        runs = [line for line in shown.stdout.splitlines() if " sql " in line]
        assert len(runs) == 3, "two by hand and the server's own; a dry run is none"
        assert len([line for line in runs if " 1 expired " in line]) == 1


async def test_a_dry_run_changes_no_byte_even_after_a_crash(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        server.wait_for("cleanup_run")
        async with ClientSession() as http:
            alice = await Client.register(http, server.url, "alice")
            await alice.send(await alice.create_group("g"))
        server.process.kill()
        server.process.wait()
    before = {path.name: path.read_bytes() for path in tmp_path.glob("conclave.db*") if not path.name.endswith("-shm")}
    assert before["conclave.db-wal"]
    dry = conclave("cleanup", "run", "--dry-run", "--config", server.config, cwd=tmp_path)
    assert dry.returncode == 0, dry.stderr
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_a_worker_that_hangs_is_noticed_and_replaced(tmp_path: Path) -> None:
    program = (
        "import conclave.server.supervise as s, conclave.cli.main as c;"
        " s.KILL_SECONDS = 2.0; s.READY_SECONDS = 20.0; c.main()"
    )
    settings = 'cleanup_interval = "1s"\n' + SQL
    with ServerProcess(tmp_path, settings, command=("-c", program)) as server:
        server.wait_for("cleanup_run")
        [worker] = server.descendants()
        os.kill(worker, signal.SIGSTOP)
        assert "hung" in server.wait_for("cleanup_worker_ended")["reason"]
        for _ in waiting("a run of a new worker"):
            events = [event["event"] for event in server.events()]
            if "cleanup_run" in events[events.index("cleanup_worker_ended") :]:
                break
        assert worker not in server.descendants()


def test_a_worker_that_waits_for_a_run_by_hand_is_left_alone(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, 'cleanup_interval = "1s"\n' + SQL) as server:
        server.wait_for("cleanup_run")
        with (tmp_path / "conclave.db.cleanup-lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            server.wait_for("waiting_for_another_run")
            time.sleep(2)
        for _ in waiting("the run that waited"):
            events = [event["event"] for event in server.events()]
            if "cleanup_run" in events[events.index("waiting_for_another_run") :]:
                break
        assert "cleanup_worker_ended" not in events


def test_a_spark_that_does_not_start_is_told_in_one_line(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        server.wait_for("cleanup_run")
        server.stop()
    stores.make_due(server.folder / "conclave.db")
    server.config.write_text("")
    broken = {"SPARK_HOME": str(tmp_path)}
    failed = conclave("cleanup", "run", "--config", server.config, cwd=tmp_path, env=broken)
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr
    assert [line for line in failed.stderr.splitlines() if line.startswith("conclave: Spark could not start")]


async def test_a_stop_does_not_wait_for_long_for_somebody_elses_write_lock_and_says_whose(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        server.wait_for("cleanup_run")
        async with ClientSession() as http:
            alice = await Client.register(http, server.url, "alice")
            group = await alice.create_group("g")
            number = await alice.send(group, b"acknowledged")
            with closing(sqlite.connect(tmp_path / "conclave.db")) as other, sqlite.write_transaction(other):
                unacknowledged = asyncio.create_task(alice.send(group, b"not acknowledged"))
                await asyncio.sleep(0.5)
                assert (await asyncio.to_thread(server.stop))[0] == 0
            with pytest.raises((RefusedError, ClientError)):
                await unacknowledged
        told = {event["event"]: event for event in server.events()}
        assert f"process {os.getpid()} (" in told["stop_waits"]["holder"]
        assert f"process {os.getpid()} (" in told["background_duty_failed"]["reason"]
        assert told["stopped"]
    with ServerProcess(tmp_path, SQL) as server:
        async with ClientSession() as http:
            alice = Client(http, server.url)
            await alice.login("alice")
            assert [(each.sequence_num, each.body) for each in await alice.fetch(group)] == [(number, b"acknowledged")]


def count_of(table: str, why: str) -> str:
    [row] = [line for line in table.splitlines() if why in line]
    return row.split("│")[-2].strip()


async def test_a_run_that_takes_too_long_stops_and_the_next_goes_on(tmp_path: Path) -> None:
    settings, count = f'{SQL}max_run_time = "1s"\n', 1500
    with ServerProcess(tmp_path, settings) as server:
        server.wait_for("cleanup_run")
        async with ClientSession() as http:
            alice = await Client.register(http, server.url, "alice")
            group = await alice.create_group("g", expiry=1)
            with closing(sqlite.connect(tmp_path / "conclave.db")) as connection, sqlite.write_transaction(connection):
                member = member_of(connection, UUID(group).bytes, UUID(alice.user_id).bytes)
                for _ in range(count):
                    append(connection, member, bytes(200_000), int(time.time()), is_commit=False)
            await asyncio.sleep(2.1)
        deleted: list[int] = []
        ended: list[bool] = []
        while not ended or ended[-1]:
            run = await asyncio.to_thread(
                conclave, "cleanup", "run", "--config", server.config, cwd=tmp_path, env={"COLUMNS": "160"}
            )
            deleted.append(int(count_of(run.stdout, "older than the group's expiry").replace(",", "")))
            ended.append("max_run_time was exceeded" in run.stdout)
            assert run.returncode == int(ended[-1])
            assert any(deleted[-20:]) or len(deleted) < 20, "runs that are stopped get nowhere"
        assert len(ended) > 1, "a run was too short for all"
        assert sum(deleted) == count


def listening(pids: set[int]) -> set[str]:
    """The addresses on which any of the processes listens: as in /proc/net/tcp, without the ports."""
    inodes = {each.removeprefix("socket:[").removesuffix("]") for pid in pids for each in links(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and columns[9] in inodes:
                found.add(columns[1].rpartition(":")[0])
    return found


LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


def test_nothing_listens_outside_loopback_but_the_configured_address(tmp_path: Path) -> None:
    stores.prepare(tmp_path / "conclave.db")
    stores.make_due(tmp_path / "conclave.db")
    with ServerProcess(tmp_path) as server:
        server.wait_for("cleanup_run")
        everyone = {server.process.pid, *server.descendants()}
        assert len(everyone) >= 3, "server, worker, JVM"
        assert listening(everyone) <= LOOPBACK
    (tmp_path / "open").mkdir()
    with ServerProcess(tmp_path / "open", SQL, address="0.0.0.0") as server:
        assert listening({server.process.pid}) - LOOPBACK == {"00000000"}, "the search sees what is open"
