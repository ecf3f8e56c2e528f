"""A server of its own whose wall clock is set wrong, and the command by which an operator accepts it."""

import os
from pathlib import Path

import pytest
from aiohttp import ClientSession

from tests.support.client import Client, expect
from tests.support.failpoints import CLOCK_POINTS
from tests.support.server import ServerProcess, conclave, waiting

YEAR = 31_536_000

_SET_BY = """
import pathlib
from conclave.clock import SystemClock

set_by, usual = pathlib.Path(__file__).with_name("set_by"), SystemClock.now
SystemClock.now = lambda clock: usual(clock) + int(set_by.read_text())
"""
"""For every process that has the folder on its path: the wall clock is set forward by so many seconds."""


class WallClock:
    """What the server, its worker and the commands take for the wall clock."""

    def __init__(self, folder: Path) -> None:
        (folder / "sitecustomize.py").write_text(_SET_BY)
        self._set_by = folder / "set_by"
        self.env = {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        self.set(0)

    def set(self, seconds: int) -> None:
        new = self._set_by.with_name("set_by.new")
        new.write_text(str(seconds))
        new.replace(self._set_by)


@pytest.fixture
def wall(tmp_path: Path) -> WallClock:
    (tmp_path / "clock").mkdir()
    return WallClock(tmp_path / "clock")


async def test_a_clock_that_was_wrong_is_accepted_though_the_command_is_killed_anywhere(
    tmp_path: Path, wall: WallClock
) -> None:
    accept = ("cleanup", "run", "--accept-clock", "--config", tmp_path / "conclave.toml")
    with ServerProcess(tmp_path, '[cleanup]\nengine = "sql"\n', wall.env) as server:
        server.wait_for("cleanup_run")
        async with ClientSession() as http:
            alice = await Client.register(http, server.url, "alice")
            group = await alice.create_group("g")
            wall.set(YEAR)
            await alice.login("alice")
            await alice.send(group)
            await expect(alice.set_expiry(group, 5), 503, 0)
            assert "set forward" in server.wait_for("clock_wrong")["fault"]
            wall.set(0)
            for point in CLOCK_POINTS:
                killed = conclave(*accept, cwd=tmp_path, env=wall.env | {"CONCLAVE_FAILPOINT": f"{point}=kill"})
                assert killed.returncode == -9, point
                await expect(alice.set_expiry(group, 5), 503, 0)
            assert await alice.numbers(group) == [1]
            done = conclave(*accept, cwd=tmp_path, env=wall.env)
            assert done.returncode == 0, done.stdout
            await alice.set_expiry(group, 1)
            for _ in waiting("the message to expire, which was sent a year ahead"):
                if await alice.numbers(group) == []:
                    break
            for _ in waiting("health"):
                async with http.get(f"{server.url}/healthz") as response:
                    if (await response.json())["status"] == "ok":
                        break
            run = conclave("cleanup", "run", "--config", tmp_path / "conclave.toml", cwd=tmp_path, env=wall.env)
            assert run.returncode == 0, run.stdout


async def test_a_run_by_hand_that_succeeds_ends_the_fault_of_the_workers_run(tmp_path: Path, wall: WallClock) -> None:
    """The worker's next run may be an hour away, and an operator who has followed the advice would see no effect."""
    settings = '[cleanup]\nengine = "sql"\n'
    with ServerProcess(tmp_path, settings, wall.env) as server:
        server.wait_for("cleanup_run")
        server.stop()
    wall.set(YEAR)
    with ServerProcess(tmp_path, settings, wall.env) as server:
        assert "ClockWrongError" in server.wait_for("cleanup_run")["error"]
        wall.set(0)
        accepted = conclave(
            *("cleanup", "run", "--accept-clock", "--config", tmp_path / "conclave.toml"), cwd=tmp_path, env=wall.env
        )
        assert accepted.returncode == 0, accepted.stdout
        url = f"{server.wait_for('listening')['admin_url']}/healthz"
        async with ClientSession() as http:
            for _ in waiting("health"):
                async with http.get(url) as response:
                    if not (await response.json())["faults"]:
                        break
