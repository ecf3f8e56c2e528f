"""The command as an operator runs it, while the server runs and is written to."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession

from conclave.proof.findings import FindingKind
from conclave.system import locks
from tests.proof.stores import command, findings
from tests.support import stores
from tests.support.client import PACKAGE, Client
from tests.support.server import PATIENCE, ServerProcess, conclave, waiting

pytestmark = pytest.mark.system

SETTINGS = 'cleanup_interval = "1s"\n[cleanup]\nengine = "sql"\ndisk_reserve = "1m"\n'


class Load:
    """Users who send, and erase what they can, all the time."""

    def __init__(self, http: ClientSession, url: str) -> None:
        self.http, self.url = http, url
        self.sent = 0

    async def begin(self) -> None:
        self.users = [await Client.register(self.http, self.url, f"user{each}") for each in range(4)]
        self.groups = [await self.users[0].create_group(f"group{each}", expiry=(-1, 1, 0)[each]) for each in range(3)]
        for user in self.users[1:]:
            for group in self.groups:
                await user.join(group)

    async def go_on(self, number: int) -> None:
        user = self.users[number]
        while True:
            for group in self.groups:
                await user.send(group, os.urandom(300))
                self.sent += 1
            await user.fetch(self.groups[2], self.sent // 5)
            await user.upload(last_resort=PACKAGE + os.urandom(3000))  # erases the former one

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            going = [tasks.create_task(self.go_on(number)) for number in range(len(self.users))]
            yield
            for each in going:
                assert not each.done() or each.exception() is None
                each.cancel()


async def test_a_server_that_is_written_to_and_cleans_up_is_clean_again_and_again(tmp_path: Path) -> None:
    """Nothing is suspected that is only being written, or that the next run erases, and nobody's request fails."""
    async with ClientSession() as http:
        with ServerProcess(tmp_path, SETTINGS) as server:
            load = Load(http, server.url)
            await load.begin()
            async with load.going_on():
                for arguments in ((), ("--read-only",)) * 3:
                    before = load.sent
                    status, told, said = await asyncio.to_thread(command, server.config, tmp_path, *arguments)
                    assert (findings(told), status) == ([], 0), (said, told)
                    assert told["verdict"] == "clean"
                    assert load.sent > before, "meanwhile they have sent"
                    assert told["parts"][0]["looked_at"]["covers"] >= 3
            assert server.stop()[0] == 0
            status, told, _ = await asyncio.to_thread(command, server.config, tmp_path)
            assert (findings(told), status) == ([], 0), "also of a server that has stopped"


async def test_findings_are_told_by_their_place_and_never_by_what_is_there(tmp_path: Path) -> None:
    async with ClientSession() as http:
        with ServerProcess(tmp_path, SETTINGS) as server:
            alice = await Client.register(http, server.url, "alice")
            await alice.send(await alice.create_group("group"), b"nobody is to see this")
            server.stop()
    keys = tmp_path / "conclave.vault" / "keys"
    shutil.copy(keys, keys.with_name("keys-new"))
    status, told, said = command(server.config, tmp_path, "--read-only")
    assert (status, told["verdict"]) == (1, "findings")
    assert findings(told) == [("key file", "keys")]
    assert "1 finding" in said
    done = conclave("verify-erasure", "--read-only", "--config", server.config, cwd=tmp_path)
    assert done.returncode == 1
    assert "key file: findings; " in done.stdout
    assert f"  {keys}-new: was left by a process that died" in done.stdout
    secret = keys.read_bytes()[-60:-28]  # of the last cover
    assert all(form not in done.stdout + done.stderr + str(told) for form in (secret.hex(), str(secret)[2:-1]))


def test_the_command_waits_for_a_run_and_runs_wait_for_it(tmp_path: Path) -> None:
    config = tmp_path / "conclave.toml"
    config.write_text(f'database_path = "{tmp_path / "hot.db"}"\n')
    stores.prepare(tmp_path / "hot.db")
    with locks.hold(tmp_path / "hot.db", locks.CLEANUP), (tmp_path / "said").open("w") as said:
        waiter = subprocess.Popen(
            [sys.executable, "-P", "-m", "conclave", "verify-erasure", "--config", config],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        for _ in waiting("the command"):
            if "waiting for another run" in (tmp_path / "said").read_text():
                break
        assert waiter.poll() is None
    told, _ = waiter.communicate(timeout=PATIENCE)
    assert waiter.returncode == 0
    parts = [line.partition(";")[0] for line in told.splitlines() if not line.startswith(" ")]
    assert parts == ["key file: clean", "experiment: clean"]
    assert told.count("this database has not been used by a server yet") == 2


@pytest.mark.parametrize(
    ("settings", "arguments", "why"),
    [
        ("", [], "no such database; `conclave serve` creates it"),
        ("listen_port = -1", [], "listen_port"),
        ("", ["--copies", "backups"], "no backups found; is the disk mounted?"),
    ],
)
def test_what_keeps_the_command_from_looking_is_one_line(
    tmp_path: Path, settings: str, arguments: list[str], why: str
) -> None:
    (tmp_path / "conclave.toml").write_text(settings)
    (tmp_path / "backups").mkdir()
    for more in ([], ["--read-only"]):
        done = conclave("verify-erasure", "--config", "conclave.toml", *arguments, *more, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert why in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_every_kind_of_finding_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "retention.md").read_text(encoding="utf-8")
    explained = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert explained >= set(FindingKind)
