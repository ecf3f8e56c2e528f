"""A backup of a server at work, while messages move to the archive, and what is served after a restore."""

import asyncio
import time
from pathlib import Path

from aiohttp import ClientSession

from conclave.backup.destination import backups_in
from conclave.config.settings import Config
from tests.processes.test_archive_kills import ARCHIVE, FADING, OFTEN, RARELY, World, happened, until
from tests.processes.test_kills import QUICK
from tests.support.archived import Tiers
from tests.support.cleaner import Cleaner
from tests.support.client import Client, expect
from tests.support.server import ServerProcess, conclave

BACKUPS = 3
"""So many backups are made while the server is at work. The last one is restored."""


def done(*words: str | Path, cwd: Path) -> str:
    result = conclave(*words, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout


def purge(group: str, folder: Path) -> None:
    words = ("cleanup", "purge", "--config", "conclave.toml", "--group", group, "--before", "1s", "--yes", "--no-run")
    done(*words, cwd=folder)


async def served_in(client: Client, group: str) -> dict[int, bytes]:
    return {message.sequence_num: message.body for message in await client.fetch_all(group)}


async def talk(world: World) -> None:
    """Send to the groups that keep, and to one that does not, without a pause."""
    fading = await world.add_group("fading", FADING)
    while True:
        for group in (*world.kept, fading):
            await world.send(group, 24 + world.made * 97 % 2000)
        await asyncio.sleep(0.01)


async def back_up(world: World, folder: Path) -> set[int]:
    """Make backups one after the other; return the bodies that were acknowledged before the last one."""
    for number in range(BACKUPS):
        before = {sent.body for group in world.groups for sent in group.sent.values()}
        words = ("backup", "--config", "conclave.toml", "--keep", "2", str(folder / "backups"))
        await asyncio.to_thread(done, *words, cwd=folder / "here")
        assert len(list(backups_in(folder / "backups"))) == min(2, number + 1)
        await asyncio.sleep(1)
    return before


async def test_what_is_restored_is_a_state_that_was_there_and_nothing_that_is_over(
    tmp_path: Path, cleaner: Cleaner
) -> None:
    (here := tmp_path / "here").mkdir()
    (there := tmp_path / "there").mkdir()
    async with ClientSession() as http:
        world = World(http)
        with ServerProcess(here, OFTEN + ARCHIVE, cleaner.lend().env, command=QUICK) as server:
            await world.begin(server.url)
            async with asyncio.TaskGroup() as tasks:
                talking = tasks.create_task(talk(world))
                await until(lambda: sum(run["archived"] > 0 for run in happened(server, "cleanup_run")) > 2)
                acknowledged = await back_up(world, tmp_path)
                talking.cancel()
            kept, purged, deleted = world.kept
            await asyncio.sleep(3)
            await asyncio.to_thread(purge, purged.key, here)
            await world.alice.post(f"/groups/{deleted.key}/delete")
            runs = happened(server, "cleanup_run")
            assert [run["error"] for run in runs if run["error"]] == [], "no run failed for the backups"
            over_by = time.time() + FADING + 1
            server.stop()
        backup = list(backups_in(tmp_path / "backups"))[-1]
        assert "the backup is intact" in done("backup", "verify", str(backup.path), cwd=there)
        await until(lambda: time.time() > over_by)
        settings = RARELY + ARCHIVE
        (there / "conclave.toml").write_text(f'{settings}[vault]\ncopies = ["{here}/conclave.vault"]\n')
        restored = done("restore", "--config", "conclave.toml", str(backup.path), cwd=there)
        assert "ended or changed again: " in restored
        assert "1 groups deleted" in restored
        assert "alive" not in restored
        with ServerProcess(there, settings, cleaner.lend().env, command=QUICK) as again:
            world.move_to(again.url)
            await expect(world.alice.fetch(kept.key), 401, 202)
            for name, client in (("alice", world.alice), ("bob", world.bob)):
                await client.login(name)
            *_, fading = world.groups
            for over in (fading, purged):
                assert await served_in(world.bob, over.key) == {}, "what is over is not served, before any run either"
            await expect(world.bob.fetch(deleted.key), 401, 400)
            served = await served_in(world.alice, kept.key)
            sent = [kept.sent[number] for number in range(1, len(served) + 1)]
            bodies = [world.search.body(each.body, each.size) for each in sent]
            assert list(served.items()) == list(enumerate(bodies, 1)), "all up to some moment, once, in order"
            stays = {each.body for each in sent}
            before = {each.body for each in kept.sent.values()} & acknowledged
            assert before <= stays, "all that was acknowledged before the backup began"
            assert await world.alice.send(kept.key, b"on") > max(kept.sent), "no number is given twice"
            await until(lambda: bool(happened(again, "cleanup_run")))
            assert happened(again, "cleanup_run")[0]["error"] == "", "the two are of one time"
            again.stop()
            assert not happened(again, "ledger_replayed"), "the restore has done that"
    assert world.search.numbers_in(there, cleaner.folder) == stays, "what is over is in no file"
    Tiers(Config(database_path=str(there / "conclave.db"))).expect_sound()
