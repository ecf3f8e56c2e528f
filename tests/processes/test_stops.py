"""Servers that are stopped, in any way and at any time: each ends, nothing is left, nothing acknowledged is lost."""

import asyncio
import contextlib
import os
import random
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from signal import SIGTERM

import pytest
from aiohttp import ClientError, ClientSession

from bench.process import children
from conclave.server import stop_limit
from spark.work_folder import remove_dead
from tests.processes.test_deaths import (
    ARCHIVE,
    ASLEEP,
    OFTEN,
    ROOT,
    SQL,
    expect_gone,
    javas,
    kill,
    processes_of,
    work_of,
)
from tests.processes.test_kills import QUICK, read_all
from tests.support.client import API, Client, RefusedError
from tests.support.sample import amount, some
from tests.support.server import PATIENCE, USUAL_SIGNALS, ServerProcess, waiting

STOPS = (
    "server",
    "server, by Ctrl-C",
    "worker and server",
    "server and worker",
    "everything",
    "worker, then server, which is paused meanwhile",
    "worker by SIGKILL, then server, which is paused meanwhile",
    "server, whose worker is paused",
    "server, whose Java is paused",
    "server, in a reload, and worker",
)
"""Who is stopped: by SIGTERM, where nothing else is said."""

ROUNDS, EACH = range(50), amount(10, 5)

LATEST_SECONDS = 10.0
"""From the start of the server's process."""

BODY_BYTES = 10_000

BROKEN = (ClientError, ConnectionError, TimeoutError, RefusedError)


def say(text: str) -> None:
    """Tell what is shown if the test fails, and with -rP in any case."""
    sys.stdout.write(text)


class Stops:
    """One store that is served, talked into, and stopped again and again."""

    def __init__(self, folder: Path, http: ClientSession, chance: random.Random) -> None:
        self.folder = folder
        self.http = http
        self.chance = chance
        self.settings = chance.choice([OFTEN, OFTEN + ARCHIVE, ASLEEP + ARCHIVE])
        self.kept: set[int] = set()

    async def begin(self) -> None:
        with ServerProcess(self.folder, self.settings, command=QUICK) as server:
            self.alice = await Client.register(self.http, server.url, "alice")
            self.group = await self.alice.create_group("g")
            assert server.stop()[0] == 0

    async def stop_once(self) -> None:
        """Start a server, and stop it some time later. What is shown if the test fails says how."""
        what, after = self.chance.choice(STOPS), self.chance.uniform(0, LATEST_SECONDS)
        is_talking = self.chance.random() < 0.5
        say(f"{what}, after {after:.2f} s{', in a talk' * is_talking}: ")
        began = time.monotonic()
        self.server = ServerProcess(self.folder, self.settings, command=QUICK, within=(*USUAL_SIGNALS, "setsid"))
        try:
            async with self.talk() if is_talking else contextlib.nullcontext():
                await asyncio.sleep(began + after - time.monotonic())
                was_serving = "listening" in self.told()
                stopped = time.monotonic()
                await self.stop(what)
                status = await asyncio.to_thread(self.server.process.wait, PATIENCE)
                say(f"{status} in {time.monotonic() - stopped:.2f} s\n")
            expect_gone(lambda: processes_of(self.folder), what)
        finally:
            kill(signal.SIGKILL, *processes_of(self.folder))
            self.server.process.wait()
        self.expect_orderly(status, was_serving=was_serving)

    async def stop(self, what: str) -> None:
        server = self.server.process.pid
        worker = next(iter(children(server)), 0)
        pause = self.chance.choice([0, self.chance.uniform(0, 0.01), self.chance.uniform(0, 1.5)])
        if "paused meanwhile" in what:
            await self.signal_while_paused(server, worker, signal.SIGKILL if "SIGKILL" in what else SIGTERM, pause)
        elif what == "server, by Ctrl-C":
            os.killpg(server, signal.SIGINT)
        elif what == "everything":
            kill(SIGTERM, *processes_of(self.folder))
        elif what == "server, in a reload, and worker":
            self.reload()
            await self.signal_in_turn([worker, server], pause)
        elif what.endswith("paused"):
            kill(signal.SIGSTOP, *filter(None, javas(self.folder) if "Java" in what else [worker]))
            kill(SIGTERM, server)
        else:
            turn = {"worker and server": [worker, server], "server and worker": [server, worker]}
            await self.signal_in_turn(turn.get(what, [server]), pause)

    def reload(self) -> None:
        """Have a server that serves read its configuration again."""
        if "listening" in self.told():  # before its own code runs, a signal of this kind ends it
            kill(signal.SIGHUP, self.server.process.pid)

    async def signal_in_turn(self, processes: Sequence[int], pause: float) -> None:
        for each in filter(None, processes):
            kill(SIGTERM, each)
            await asyncio.sleep(pause)

    async def signal_while_paused(self, server: int, worker: int, number: int, pause: float) -> None:
        kill(signal.SIGSTOP, server)
        kill(number, *filter(None, [worker]))
        await asyncio.sleep(pause)
        kill(SIGTERM, server)
        kill(signal.SIGCONT, server)

    def told(self) -> list[str]:
        return [str(each.get("event")) for each in self.server.events()]

    @contextlib.asynccontextmanager
    async def talk(self) -> AsyncIterator[None]:
        """As soon as somebody listens, have a stream, requests one after another, and one whose body does not end."""
        tasks = [asyncio.create_task(each()) for each in (self.listen, self.send, self.upload)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [each for each in results if not isinstance(each, asyncio.CancelledError | None)] == []

    async def url(self) -> str:
        while True:
            for each in self.server.events():
                if each.get("event") == "listening":
                    return str(each["url"])
            await asyncio.sleep(0.02)

    async def listen(self) -> None:
        url = f"{await self.url()}{API}/events"
        with contextlib.suppress(*BROKEN):
            async with self.http.get(url, headers={"Authorization": f"Bearer {self.alice.token}"}) as response:
                await response.read()

    async def send(self) -> None:
        self.alice.url = await self.url()
        with contextlib.suppress(*BROKEN):
            while True:
                self.kept.add(await self.alice.send(self.group, b"x" * BODY_BYTES))
                await asyncio.sleep(0.01)  # a talk, not a flood

    async def upload(self) -> None:
        port = int((await self.url()).rpartition(":")[2])
        with contextlib.suppress(*BROKEN):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(writer):
                head = self.alice.raw_get(f"/groups/{self.group}/messages").replace(b"GET", b"POST", 1)
                writer.write(head.replace(b"\r\n\r\n", b"\r\nContent-Length: 1000000\r\n\r\n") + b"x" * 1000)
                await reader.read()

    def expect_orderly(self, status: int, *, was_serving: bool) -> None:
        log = (self.folder / "server.log").read_text()
        events = self.server.events()
        if was_serving:
            assert status == 0, log
            assert len(events) == len(log.splitlines()), f"each line is an event: {log}"
        # Before its own code runs, a signal ends it as any program; Ctrl-C then is told by click.
        assert status in (0, -SIGTERM, -signal.SIGINT, 1), log
        assert "stop_forced" not in log
        assert not [each for each in events if "exception" in each], log
        if status == 0:
            assert not list(self.folder.glob("conclave.db-*")), "neither a WAL nor its index is left"

    async def rest(self) -> None:
        """See that everything is there, and that the next run can remove what a worker left that was killed."""
        with ServerProcess(self.folder, self.settings, command=QUICK) as server:
            self.alice.url = server.url
            served = {message.sequence_num for message in await read_all(self.alice, self.group)}
            assert server.stop()[0] == 0
        expect_gone(lambda: processes_of(self.folder), "a stop")
        assert self.kept <= served, "nothing acknowledged is lost"
        assert remove_dead(work_of(self.folder)) == []
        assert not list(work_of(self.folder).glob("*"))


@pytest.mark.parametrize("number", some(ROUNDS, 1, "rounds of stops"))
async def test_whenever_and_however_a_server_is_stopped_it_ends_and_leaves_nothing(tmp_path: Path, number: int) -> None:
    seed = int(os.environ.get("CONCLAVE_STOPS", random.randrange(10**6)))
    say(f"CONCLAVE_STOPS={seed} has the same stops again\n")
    async with ClientSession() as http:
        history = Stops(tmp_path, http, random.Random(f"{seed} {number}"))
        await history.begin()
        for _ in range(EACH):
            await history.stop_once()
        await history.rest()


HANGS = """
import time
from pathlib import Path
from conclave.archive.reader import Archive
from conclave.server import duties, stop_limit
from conclave.store.engine import database

def hang(*_):
    Path("hanging").touch()
    time.sleep(600)

stop_limit.LIMIT_SECONDS = 1.0
{what} = hang
duties.stretches.must_exist = lambda _: True
from conclave.cli.main import main
main()
"""
"""A server one of whose threads waits for ever, as for a disk that has died."""


async def test_a_stop_that_hangs_ends_by_force_says_where_it_stood_and_loses_nothing(tmp_path: Path) -> None:
    program = HANGS.replace("{what}", "Archive._has_log")
    async with ClientSession() as http:
        with ServerProcess(tmp_path, SQL, command=("-c", program)) as server:
            alice = await Client.register(http, server.url, "alice")
            group = await alice.create_group("g")
            for _ in waiting("the thread that hangs"):
                if (tmp_path / "hanging").exists():
                    break
            numbers = [await alice.send(group) for _ in range(5)]
            assert server.stop()[0] == stop_limit.EXIT_STATUS
            expect_gone(lambda: processes_of(tmp_path), "a stop by force")
            told = server.wait_for("stop_forced")
        assert told["waits_for"]["archive_0"].startswith("conclave/archive/reader.py:")
        with ServerProcess(tmp_path, SQL) as server:
            alice.url = server.url
            assert await alice.numbers(group) == numbers


def test_a_start_that_hangs_ends_by_force_once_it_is_stopped(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, SQL, command=("-c", HANGS.replace("{what}", "database.prepare")))
    try:
        for _ in waiting("the thread that hangs"):
            if (tmp_path / "hanging").exists():
                break
        assert server.stop()[0] == stop_limit.EXIT_STATUS
        assert [each["event"] for each in server.events()][-1] == "stop_forced"
    finally:
        kill(signal.SIGKILL, server.process.pid)
        server.process.wait()


def test_the_service_managers_wait_for_longer_than_a_stop_may_take() -> None:
    unit = (ROOT / "deploy" / "systemd" / "conclave.service").read_text()
    waits = [int(each) for each in re.findall(r"^TimeoutStopSec=(\d+)s$", unit, re.MULTILINE)]
    install = (ROOT / "docs" / "operations" / "install.md").read_text()
    waits += [int(each) for each in re.findall(r"--stop-timeout (\d+)", install)]
    assert len(waits) == 2
    assert min(waits) >= stop_limit.LIMIT_SECONDS + 10, "what is left for the log, and for a busy machine"
