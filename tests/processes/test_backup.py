"""A backup of a server at work, while messages move to the archive, and what is served after a restore."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path

from aiohttp import ClientSession

from conclave.backup.destination import kept_in
from conclave.config.settings import Config
from tests.processes.test_archive_kills import ARCHIVE, FADING, OFTEN, RARELY, World, happened, until
from tests.processes.test_kills import QUICK
from tests.support.archived import Tiers
from tests.support.cleaner import Cleaner
from tests.support.client import Client, RefusedError
from tests.support.server import ServerProcess, conclave

BACKUPS = 3
"""So many backups are made while the server is at work. The last one is restored."""


def done(*words: str | Path, cwd: Path) -> str:
    result = conclave(*words, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout


async def served_in(client: Client, group: str) -> dict[int, bytes]:
    """Page through a group."""
    found: dict[int, bytes] = {}
    while page := await client.fetch(group, max(found, default=0), 500):
        found |= {message.sequence_num: message.body for message in page}
    return found


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
        assert len(kept_in(folder / "backups")) == min(2, number + 1)
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
            runs = happened(server, "cleanup_run")
            assert [run["error"] for run in runs if run["error"]] == [], "no run failed for the backups"
            over_by = time.time() + FADING + 1
            server.stop()
        backup = kept_in(tmp_path / "backups")[-1]
        assert "the backup is whole" in done("backup", "verify", str(backup.path), cwd=there)
        await until(lambda: time.time() > over_by)
        (there / "conclave.toml").write_text(RARELY + ARCHIVE)
        done("restore", "--config", "conclave.toml", str(backup.path), cwd=there)
        with ServerProcess(there, RARELY + ARCHIVE, cleaner.lend().env, command=QUICK) as again:
            world.move_to(again.url)
            for name, client in (("alice", world.alice), ("bob", world.bob)):
                with suppress(RefusedError):
                    await client.login(name)
            *_, fading = world.groups
            assert await served_in(world.bob, fading.key) == {}, "what is over is not served, before any run either"
            kept: set[int] = set()
            for group in world.kept:
                served = await served_in(world.alice, group.key)
                sent = [group.sent[number] for number in range(1, len(served) + 1)]
                bodies = [world.search.body(each.body, each.size) for each in sent]
                assert list(served.items()) == list(enumerate(bodies, 1)), "all up to some moment, once, in order"
                kept |= {each.body for each in sent}
                before = {each.body for each in group.sent.values()} & acknowledged
                assert before <= kept, "all that was acknowledged before the backup began"
                assert await world.alice.send(group.key, b"on") > len(served)
            await until(lambda: bool(happened(again, "cleanup_run")))
            assert happened(again, "cleanup_run")[0]["error"] == "", "the two are of one time"
            again.stop()
    assert world.search.numbers_in(there, cleaner.folder) == kept, "what is over is in no file"
    Tiers(Config(database_path=str(there / "conclave.db"))).expect_sound()
