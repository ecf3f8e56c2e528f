"""The command as an operator runs it, while the server runs and is written to."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from conclave.proof.findings import Kind
from conclave.system import locks
from tests.conftest import Running
from tests.proof.stores import command, findings
from tests.support import stores
from tests.support.cleaner import Cleaner
from tests.support.client import PACKAGE, PASSWORD, Client
from tests.support.forensics import Search
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
                await user.send(group, os.urandom((30, 300, 3000, 30_000)[self.sent % 4]))
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


async def verified(server: ServerProcess, *arguments: str) -> tuple[int, dict[str, Any], str]:
    return await asyncio.to_thread(command, server.config, server.folder, *arguments)


async def test_a_server_that_is_written_to_and_cleans_up_is_clean_again_and_again(tmp_path: Path) -> None:
    """Nothing is suspected that is only being written, and nobody's request fails."""
    async with ClientSession() as http:
        with ServerProcess(tmp_path, SETTINGS) as server:
            load = Load(http, server.url)
            await load.begin()
            async with load.going_on():
                pages = 0
                for _ in range(8):
                    before = load.sent
                    status, told, said = await verified(server)
                    assert (findings(told), status) == ([], 0), (said, told)
                    assert told["verdict"] == "clean"
                    assert load.sent > before, "meanwhile they have sent"
                    looked_at = {part["name"]: part["looked_at"] for part in told["parts"]}
                    assert looked_at["body segments"]["pages"] > pages
                    pages = looked_at["body segments"]["pages"] // 2
                    assert looked_at["write-ahead log"]["times"] == 2
                    assert looked_at["write-ahead log"]["bytes emptied"] > 0
            assert server.stop()[0] == 0
            status, told, _ = await verified(server)
            assert (findings(told), status) == ([], 0), "also of a server that has stopped"


async def test_findings_are_told_by_their_place_and_never_by_what_is_there(tmp_path: Path) -> None:
    secret = b"nobody is to see this"
    async with ClientSession() as http:
        with ServerProcess(tmp_path, SETTINGS) as server:
            await Client.register(http, server.url, "alice")
            (tmp_path / "conclave.db.copy").write_bytes(secret)
            (tmp_path / "conclave.data" / "more").write_bytes(secret)
            status, told, said = await verified(server)
            assert (status, told["verdict"]) == (1, "findings")
            assert findings(told) == [("other files", "unknown_file")] * 2
            assert "2 findings" in said
            done = await asyncio.to_thread(conclave, "verify-erasure", "--config", server.config, cwd=tmp_path)
            assert done.returncode == 1
            assert "other files: findings; " in done.stdout
            assert f"  {tmp_path}/conclave.db.copy: is not Conclave's (21 bytes)" in done.stdout
            assert secret.decode() not in done.stdout + done.stderr + str(told)


def test_the_command_waits_for_a_run_and_runs_wait_for_it(tmp_path: Path) -> None:
    config = tmp_path / "conclave.toml"
    config.write_text(f'database_path = "{tmp_path / "hot.db"}"\n')
    stores.prepare(tmp_path / "hot.db")
    with (
        locks.hold(tmp_path / "hot.db", locks.CLEANUP),
        (tmp_path / "said").open("w") as said,
    ):
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
    assert [line.partition(";")[0] for line in told.splitlines() if not line.startswith(" ")] == [
        f"{part}: clean"
        for part in (
            *("body segments", "references", "free pages", "write-ahead log", "archive", "work folder"),
            *("other files", "key file"),
        )
    ]


@pytest.mark.parametrize(
    ("settings", "why"),
    [("", "no such database; `conclave serve` creates it"), ("listen_port = -1", "listen_port")],
)
def test_what_keeps_the_command_from_looking_is_one_line(tmp_path: Path, settings: str, why: str) -> None:
    (tmp_path / "conclave.toml").write_text(settings)
    for arguments in ((), ("--canary",)):
        done = conclave("verify-erasure", "--config", tmp_path / "conclave.toml", *arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert why in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_copies_that_are_not_there_prove_nothing(tmp_path: Path) -> None:
    (tmp_path / "conclave.toml").write_text("")
    (tmp_path / "backups").mkdir()
    arguments = "--config", tmp_path / "conclave.toml", "--copies", tmp_path / "backups"
    done = conclave("verify-erasure", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "there are no backups here; is its disk mounted?" in done.stderr


async def delete_by_time(server: Running, alice: Client, bob: Client, group: str) -> None:
    await alice.set_expiry(group, 60)
    server.clock.advance(61)


async def delete_by_watermark(server: Running, alice: Client, bob: Client, group: str) -> None:
    await alice.set_expiry(group, 0)
    for user in (alice, bob):
        await user.fetch(group)
        await server.settle()


async def delete_group(server: Running, alice: Client, bob: Client, group: str) -> None:
    await alice.post(f"/groups/{group}/delete")


async def delete_account(server: Running, alice: Client, bob: Client, group: str) -> None:
    await alice.post("/delete-account", password=PASSWORD)


async def delete_session(server: Running, alice: Client, bob: Client, group: str) -> None:
    """What its user had sent stays."""
    await alice.post("/logout")


async def delete_invite(server: Running, alice: Client, bob: Client, group: str) -> None:
    carol, dave = await server.users("carol", "dave")
    await carol.decline(await alice.invite(group, carol, os.urandom(3000)))
    await alice.bring(dave, group, os.urandom(3000))
    for each in (await dave.get("/welcomes"))["welcomes"]:
        await dave.post(f"/welcomes/{each['welcome_id']}/accept")


@pytest.mark.parametrize(
    "delete", [delete_by_time, delete_by_watermark, delete_group, delete_account, delete_session, delete_invite]
)
async def test_after_each_kind_of_deletion_and_a_run_nothing_is_left(
    running: Running, cleaner: Cleaner, tmp_path: Path, delete: Any
) -> None:
    search = Search()
    alice, bob = await running.users("alice", "bob")
    group, other = await alice.create_group("group"), await bob.create_group("other")
    await bob.join(group)
    for number in range(60):
        await alice.send(group, search.body(2 * number, 24 + number * 97 % 9000))
        await bob.send(other, search.body(2 * number + 1, 24 + number * 97 % 9000))
    await delete(running, alice, bob, group)
    await running.settle()
    config = tmp_path / "conclave.toml"
    config.write_text(f'database_path = "{running.config.database}"\n[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n')
    sql = type(running.config)(
        database_path=running.config.database_path,
        cleanup=type(running.config.cleanup)(engine="sql", disk_reserve=0),
    )
    report = await asyncio.to_thread(cleaner.run, sql, running.clock.now(), running.clock.set_by)
    status, told, said = await asyncio.to_thread(command, config, tmp_path)
    assert (findings(told), status) == ([], 0), said
    left = search.numbers_in(tmp_path)
    assert left >= set(range(1, 120, 2)), "what should stay has stayed"
    is_kept = delete in (delete_session, delete_invite)
    assert sum(report["deleted"][rule] for rule in ("expired", "fetched", "deleted_group", "deleted_account")) == (
        0 if is_kept else 60
    )
    assert left & set(range(0, 120, 2)) == (set(range(0, 120, 2)) if is_kept else set())


def test_every_kind_of_finding_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "retention.md").read_text(encoding="utf-8")
    explained = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert explained >= set(Kind)
