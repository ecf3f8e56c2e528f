"""A disk that is full: what is refused, what goes on, and that all comes right by itself."""

import asyncio
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiohttp import ClientSession

from tests.support.client import PASSWORD, Client, Message, RefusedError
from tests.support.scrape import read
from tests.support.server import PATIENCE, ServerProcess

CYCLES = int(os.environ.get("CONCLAVE_CYCLES", "2"))
"""How often the disk is filled; each takes some seconds."""

DISK, RESERVE = 64, 16
"""MiB."""

T = TypeVar("T")

MIB = 1024 * 1024
EXPIRY = 3
BODY = 300_000


@pytest.fixture
def within(tmp_path: Path) -> tuple[str, ...]:
    """What gives a process a small disk of its own, and nobody else: at ``tmp_path``/disk."""
    unshare = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--mount", "--map-root-user")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = (*unshare, "sh", "-c", f'mount -t tmpfs -o size={DISK}m tmpfs "{disk}" && exec "$@"', "sh")
    if not shutil.which("unshare") or subprocess.run([*mounted, "true"], capture_output=True).returncode:
        pytest.skip("this system lets no program mount a disk for itself; the test without one is run all the same")
    return mounted


class Health:
    """What the two listeners say."""

    def __init__(self, http: ClientSession, server: ServerProcess) -> None:
        self.http = http
        self.clients = server.url
        self.operators = server.wait_for("listening")["admin_url"]

    async def faults(self) -> dict[str, str]:
        before, after = await self._told(), None
        while before != after:  # otherwise the two listeners were asked about different moments
            before = before if after is None else after
            async with self.http.get(f"{self.clients}/healthz") as response:
                status, is_well = response.status, (await response.json())["status"] == "ok"
            after = await self._told()
        assert is_well is (status == 200 and not before)
        return before

    async def _told(self) -> dict[str, str]:
        async with self.http.get(f"{self.operators}/healthz") as response:
            return dict((await response.json())["faults"])

    async def until_well(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while faults := await self.faults():
            assert time.monotonic() < deadline, faults
            await self._scrape()
            await asyncio.sleep(0.2)

    async def _scrape(self) -> None:
        async with self.http.get(f"{self.operators}/metrics") as response:
            assert response.status == 200
            assert read(await response.text()).one("conclave_ready") == 1, "what is stored is served"


async def refusal(request: Awaitable[Any]) -> RefusedError:
    with pytest.raises(RefusedError) as refused:
        await request
    return refused.value


EMPTY = f"""
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout={PATIENCE})
while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() != (0, 0, 0):
    pass
"""


def empty_log(server: ServerProcess, database: Path) -> None:
    """Leave no room in the write-ahead log: after a checkpoint what is small would fit into it."""
    user = () if os.geteuid() == 0 else ("--user", "--preserve-credentials")
    enter = ("nsenter", f"--target={server.process.pid}", "--mount", *user)
    subprocess.run([*enter, sys.executable, "-c", EMPTY, database], check=True, timeout=PATIENCE)


def fill(disk: Path) -> None:
    """Take what is left, to the last block."""
    with (disk / "somebody elses").open("ab", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue


async def test_a_full_disk_refuses_messages_serves_the_rest_and_comes_right_by_itself(
    tmp_path: Path, within: tuple[str, ...]
) -> None:
    settings = (
        f'database_path = "{tmp_path}/disk/conclave.db"\ncleanup_interval = "1s"\n'
        f'[cleanup]\nengine = "sql"\ndisk_reserve = "{RESERVE}m"\n'
    )
    with ServerProcess(tmp_path, settings, within=within) as server:
        disk = Path(f"/proc/{server.process.pid}/root{tmp_path}/disk")
        async with ClientSession() as http:
            health = Health(http, server)
            alice = await Client.register(http, server.url, "alice")
            bob = await Client.register(http, server.url, "bob")
            kept, fading = await alice.create_group("kept"), await alice.create_group("fading", expiry=EXPIRY)
            await bob.join(kept)
            acknowledged: dict[int, bytes] = {}
            for cycle in range(CYCLES):
                await health.until_well()
                # Where little is free, a run at work has it all: what is refused for that is sent again.
                body = os.urandom(1000)
                acknowledged[await in_the_end(partial(alice.send, kept, body))] = body
                short = await in_the_end(partial(alice.create_group, f"short{cycle}"))
                await bob.join(short)
                # So that it is full in the end, however slowly this test sends, and stays so while it looks.
                await in_the_end(partial(alice.set_expiry, fading, 3600))
                for _ in range(60):
                    await in_the_end(partial(alice.send, fading, os.urandom(BODY)))
                if cycle % 2 == 0:
                    fill(disk)
                await refused_until_full(alice, fading, health, tmp_path / "disk" / "conclave.db")
                assert bodies(await bob.fetch(kept)) == acknowledged, "reads go on"
                if cycle % 2 == 0:  # else there may be room for what is small
                    assert (await refusal(alice.send(kept, b"x"))).status == 507
                await in_the_end(partial(alice.set_expiry, fading, EXPIRY))
                await in_the_end(partial(bob.leave, short))
                while await alice.fetch(fading):
                    await asyncio.sleep(0.2)
                await eventually(lambda: (disk / "conclave.db").stat().st_size < 10 * MIB, "what is erased comes back")
                await health.until_well()
                body = os.urandom(1000)
                acknowledged[await in_the_end(partial(alice.send, kept, body))] = body
                assert bodies(await bob.fetch(kept)) == acknowledged, "nothing acknowledged is lost"
                (disk / "somebody elses").unlink(missing_ok=True)
            reserve = disk / "conclave.db.reserve"
            await eventually(lambda: reserve.stat().st_blocks * 512 == RESERVE * MIB, "the reserve is made anew")


async def test_on_a_disk_that_others_fill_small_things_go_on_between_two_runs(
    tmp_path: Path, within: tuple[str, ...]
) -> None:
    settings = (
        f'database_path = "{tmp_path}/disk/conclave.db"\ncleanup_interval = "1h"\n'
        f'[cleanup]\nengine = "sql"\ndisk_reserve = "{RESERVE}m"\n'
    )
    with ServerProcess(tmp_path, settings, within=within) as server:
        server.wait_for("cleanup_run")
        disk = Path(f"/proc/{server.process.pid}/root{tmp_path}/disk")
        reserve = disk / "conclave.db.reserve"
        async with ClientSession() as http:
            health = Health(http, server)
            alice = await Client.register(http, server.url, "alice")
            bob = await Client.register(http, server.url, "bob")
            group, other = await alice.create_group("g"), await alice.create_group("h")
            await bob.join(group)
            await health.until_well()
            empty_log(server, tmp_path / "disk" / "conclave.db")
            fill(disk)
            assert (await refusal(alice.send(group, b"x"))).status == 507
            await in_the_end(partial(bob.leave, group))
            await in_the_end(partial(alice.post, f"/groups/{other}/delete"))
            await bob.post("/change-password", current_password=PASSWORD, new_password=f"{PASSWORD} anew")
            assert (await refusal(alice.send(group, b"x"))).status == 507
            assert reserve.stat().st_size == (RESERVE - 4) * MIB, "the rest is left to cleanup"
            deadline = time.monotonic() + PATIENCE
            while set(found := await health.faults()) != {"storage"}:
                assert time.monotonic() < deadline, found
                await asyncio.sleep(0.2)
            (disk / "somebody elses").unlink()
            await health.until_well()
            assert reserve.stat().st_blocks * 512 == RESERVE * MIB, "it is made whole again"
            await alice.send(group, b"after")


async def refused_until_full(client: Client, group: str, health: Health, database: Path) -> None:
    """Send until there is no room; health knows as soon as the client does."""
    refused = None
    while refused is None:
        try:
            await client.send(group, os.urandom(BODY))
        except RefusedError as error:
            refused = error
    faults = await health.faults()
    assert refused.status == 507
    assert str(database) in faults["storage"]
    assert "bytes" in faults["storage"]


async def in_the_end(request: Callable[[], Awaitable[T]]) -> T:
    """Small things are done, once a run has found the disk full: until then there may not be a single block."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await request()
        except RefusedError as error:
            if error.status != 507 or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


async def eventually(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.1)


def bodies(messages: list[Message]) -> dict[int, bytes]:
    return {message.sequence_num: message.body for message in messages}


async def test_a_log_that_cannot_grow_is_told_at_once_and_forgotten_when_it_can(tmp_path: Path) -> None:
    """Without a disk of its own: by the limit of the system on the size of a process's files."""
    with ServerProcess(tmp_path, '[cleanup]\nengine = "sql"\n') as server:
        server.wait_for("cleanup_run")
        async with ClientSession() as http:
            health = Health(http, server)
            alice = await Client.register(http, server.url, "alice")
            group = await alice.create_group("g")
            acknowledged = {await alice.send(group, b"before"): b"before"}
            hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)[1]
            wal = (tmp_path / "conclave.db-wal").stat().st_size
            for turn in range(1, 4):
                resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (wal + 8192, hard))
                refused = await refusal(alice.send(group, os.urandom(BODY)))
                assert (refused.status, refused.headers["Retry-After"]) == (503, "5")
                # Not by health: what is small may fit into the log as it is, and then health is well again at once.
                told = [event for event in server.events() if event["event"] == "storage_fault"]
                assert len(told) == turn
                assert str(tmp_path / "conclave.db") in str(told[-1])
                assert bodies(await alice.fetch(group)) == acknowledged, "reads go on"
                resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
                await health.until_well()
                body = os.urandom(BODY)
                acknowledged[await alice.send(group, body)] = body
                wal = (tmp_path / "conclave.db-wal").stat().st_size
            assert bodies(await alice.fetch(group)) == acknowledged
        events = [event["event"] for event in server.events()]
        assert events.count("storage_fault") == events.count("storage_works_again") == 3, "told once each time"


_WITHOUT_INODES = """
import subprocess, sys
from itertools import count
from pathlib import Path
from conclave.store.engine import schema

disk = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m,nr_inodes=16", "tmpfs", disk], check=True)
schema.create(disk / "conclave.db")
(disk / "conclave.toml").write_text('listen_port = 0\\n[cleanup]\\nengine = "sql"\\n[admin]\\nlisten_port = 0\\n')
try:
    for number in count():
        (disk / str(number)).touch()
except OSError:
    pass
for command in ("user list", "doctor", "backup backups"):
    subprocess.run([sys.executable, "-P", "-m", "conclave", *command.split()], cwd=disk, stderr=subprocess.STDOUT)
"""
"""Makes a database on a disk of its own, fills that with empty files, and runs commands there."""


def test_a_disk_without_an_inode_is_not_said_to_have_room(tmp_path: Path, within: tuple[str, ...]) -> None:
    own = within[: within.index("sh")]
    ran = subprocess.run(
        [*own, sys.executable, "-P", "-c", _WITHOUT_INODES, tmp_path / "disk"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ran.returncode == 0, ran.stderr
    assert "unable to open database file (" in ran.stdout
    assert ran.stdout.count("bytes are free, but no inode for a new file") >= 2
    assert "remove files that are not Conclave's: each uses an inode" in ran.stdout
    assert "(0 bytes are free)" not in ran.stdout
