"""The commands of the page about operating, word for word: a backup of a server at work, and what comes of it."""

import asyncio
import re
import shutil
import subprocess
from pathlib import Path

from aiohttp import ClientSession

from conclave.system import locks
from tests.processes.test_archive_kills import ARCHIVE, OFTEN, RARELY, happened, until
from tests.processes.test_kills import QUICK
from tests.support.cleaner import Cleaner
from tests.support.client import Client
from tests.support.server import PATIENCE, ServerProcess, waiting

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def commands() -> list[str]:
    """The chapter's blocks: backup without an archive, with one, and the way back."""
    [chapter] = re.findall(r"^## Backups\n(.*?)^## ", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    blocks: list[str] = re.findall(r"^```sh\n(.*?)^```$", chapter, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    return blocks


def do(script: str, folder: Path) -> None:
    done = subprocess.run(["sh", "-eu"], input=script, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, ""), done


async def everything(client: Client, group: str) -> dict[int, bytes]:
    """Page through a group."""
    found: dict[int, bytes] = {}
    while page := await client.fetch(group, max(found, default=0)):
        found |= {message.sequence_num: message.body for message in page}
    return found


async def test_a_backup_taken_of_a_server_at_work_is_served_with_all_that_was_acknowledged(
    tmp_path: Path, cleaner: Cleaner
) -> None:
    _, backup, restore = commands()
    (there := tmp_path / "there").mkdir()
    (here := tmp_path / "here").mkdir()
    sent: dict[int, bytes] = {}
    async with ClientSession() as http:
        with ServerProcess(there, OFTEN + ARCHIVE, cleaner.lend().env, command=QUICK) as server:
            alice = await Client.register(http, server.url, "alice")
            group = await alice.create_group("friends")

            async def talk() -> None:
                while True:
                    body = b"%d" % (len(sent) + 1) * 50
                    sent[await alice.send(group, body)] = body
                    await asyncio.sleep(0.01)

            async with asyncio.TaskGroup() as tasks:
                talking = tasks.create_task(talk())
                await until(lambda: sum(run["archived"] > 0 for run in happened(server, "cleanup_run")) > 2)
                acknowledged = dict(sent)
                await asyncio.to_thread(do, backup, there)
                talking.cancel()
            server.stop()
        shutil.move(there / "backup", here / "backup")
        shutil.rmtree(there)
        (here / "conclave.data" / "archive").mkdir(parents=True)
        (here / "conclave.data" / "archive" / "something older").touch()
        (here / "conclave.db-wal").write_text("something older")
        do(restore, here)
        with ServerProcess(here, RARELY + ARCHIVE, cleaner.lend().env, command=QUICK) as again:
            alice.url = again.url
            do('[ "$(sqlite3 conclave.db "PRAGMA journal_mode")" = wal ]', here)
            served = await everything(alice, group)
            assert served == {number: sent[number] for number in range(1, len(served) + 1)}
            assert acknowledged.items() <= served.items()
            assert await alice.send(group, b"on") == len(served) + 1
            await until(lambda: bool(happened(again, "cleanup_run")))
            assert happened(again, "cleanup_run")[0]["error"] == "", "the two are of one time"
            assert len(await everything(alice, group)) == len(served) + 1
            again.stop()


def test_a_backup_waits_for_a_run_under_way(tmp_path: Path) -> None:
    _, backup, _ = commands()
    do('sqlite3 conclave.db "CREATE TABLE t (x)"; mkdir -p conclave.data/archive/lifetime=-1', tmp_path)
    with locks.hold(tmp_path / "conclave.db", locks.CLEANUP):
        waiting_for_it = subprocess.Popen(["sh", "-euc", backup], cwd=tmp_path)
        for _ in waiting("the backup to begin"):
            if (tmp_path / "backup").exists():
                break
        assert not (tmp_path / "backup" / "conclave.db").exists()
    assert waiting_for_it.wait(PATIENCE) == 0
    assert (tmp_path / "backup" / "archive" / "lifetime=-1").is_dir()


def test_a_backup_without_an_archive_is_whole_and_holds_nothing_that_was_erased(tmp_path: Path) -> None:
    plain, _, restore = commands()
    erased, kept = "e" * 5000, "k" * 5000
    do(f"sqlite3 conclave.db \"CREATE TABLE t (x); INSERT INTO t VALUES ('{erased}'), ('{kept}')\"", tmp_path)
    do("sqlite3 conclave.db \"DELETE FROM t WHERE x LIKE 'e%'\"", tmp_path)
    do(plain, tmp_path)
    (tmp_path / "conclave.db").write_bytes(b"")
    do(restore, tmp_path)
    content = (tmp_path / "conclave.db").read_text(encoding="latin-1")
    assert kept[:1000] in content
    assert erased[:100] not in content
    assert not (tmp_path / "conclave.data" / "archive").exists()
