"""kill -9 at every failpoint of the archive, while clients read: nothing is lost, doubled, revived or left behind.

One history of one store. Each round sends to its groups, makes older groups due by every rule, and ends with a run
that is killed; the next round's run goes on with what that one left.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from conclave.config.settings import Config
from tests.processes.test_kills import QUICK
from tests.support.archived import Tiers
from tests.support.cleaner import Cleaner
from tests.support.client import PASSWORD, Client, Message, RefusedError
from tests.support.failpoints import ARCHIVE_POINTS, RESTORE_POINTS
from tests.support.forensics import StoreSearch
from tests.support.sample import amount, some
from tests.support.server import PATIENCE, ServerProcess, alive
from tests.support.warm_java import WarmJava

ARCHIVE = '[archive]\nafter = "1s"\nmargin = "0"\nreclaim_interval = "0"\nreclaim_after = "0"\n'
OFTEN, RARELY = 'cleanup_interval = "1s"\n', 'cleanup_interval = "1d"\n'

FADING = 10
"""Seconds that messages live in the groups whose time ends by itself."""

TIMES = {
    "archive.fixed": 3,
    "archive.appended": 2,
    "archive.group_switched": 3,
    "restore.copied": amount(2, 1),  # the few rounds of a sample do not send enough for more
}
"""At which time a point is deadly, if not at the first: in the middle of what is done for many."""

ENOUGH = 10
"""So many times an empty group is read, by all together, before it is left alone until the end."""

TRIES = 4
"""So many rounds may pass before a run has reason to reach a point: what moves in one is due in the next."""


@dataclass
class Sent:
    """A message that was acknowledged: its body's number and size, and the second before it was sent."""

    body: int
    size: int
    after: int


@dataclass
class Group:
    """A group as its clients know it. What they were promised is told before they ask, what they may rely on after."""

    key: str
    lives: float = float("inf")  # seconds; once a shorter life was asked for, that
    hides_after: float = float("inf")  # seconds; a shorter life once it was granted
    holds: bool = True  # until it was asked to be delete-after-fetch, or to be deleted
    exists: bool = True
    sent: dict[int, Sent] = field(default_factory=dict)
    endangered: set[int] = field(default_factory=set)  # of an account whose deletion was asked for
    hidden: set[int] = field(default_factory=set)  # whose deletion was granted
    gone: set[int] = field(default_factory=set)  # were not served once
    empty: int = 0  # so many passes have found nothing after all was gone


@dataclass
class Generation:
    """What one round makes, and a later one brings to its end."""

    deleted: Group
    shortened: Group
    fetched: Group
    passing: Client
    left: list[tuple[Group, int]] = field(default_factory=list)  # what the passing user sent


class World:
    """Two users who talk and read, and others who come and go."""

    def __init__(self, http: ClientSession) -> None:
        self.http = http
        self.search = StoreSearch()
        self.made = 0
        self.rounds = 0
        self.passes = 0
        self.fades_until = 0.0
        self.groups: list[Group] = []
        self.generations: list[Generation] = []

    async def begin(self, url: str) -> None:
        self.alice = await Client.register(self.http, url, "alice")
        self.bob = await Client.register(self.http, url, "bob")
        self.kept = [await self.add_group(f"kept{number}") for number in range(3)]

    def move_to(self, url: str) -> None:
        """Talk to a server that was started anew."""
        for client in (self.alice, self.bob, *(each.passing for each in self.generations)):
            client.url = url

    async def add_group(self, name: str, expiry: int | None = None) -> Group:
        group = Group(await self.alice.create_group(name, expiry=expiry))
        if expiry:
            group.lives = group.hides_after = expiry
        await self.bob.join(group.key)
        self.groups.append(group)
        return group

    async def send(self, group: Group, size: int, sender: Client | None = None) -> int:
        self.made += 1
        body, now = self.made, int(time.time())
        number = await (sender or self.alice).send(group.key, self.search.body(body, size))
        group.sent[number] = Sent(body, size, now)
        return number

    async def talk(self) -> None:
        """Send to the groups that stay, and to new ones of each kind."""
        self.rounds += 1
        round_ = self.rounds
        passing = await Client.register(self.http, self.alice.url, f"passing{round_}")
        made = Generation(
            # A class of its own, so that a part goes whole with it.
            await self.add_group(f"deleted{round_}", 100_000 + round_),
            await self.add_group(f"shortened{round_}"),
            await self.add_group(f"fetched{round_}"),
            passing,
        )
        self.generations.append(made)
        fading = await self.add_group(f"fading{round_}", FADING + round_ % 3)
        for group in (made.deleted, made.shortened, made.fetched, fading, *self.kept):
            for _ in range(4):
                # More than is restored in one step, where that is done.
                await self.send(group, (24 + self.made * 97 % 2000) * (10 if group is self.kept[-1] else 1))
        self.fades_until = time.time() + FADING + 4
        for _ in range(2):
            await self.send(made.deleted, 300_000)  # more than is erased in one step
        for group in self.kept[:2]:
            await passing.join(group.key)
            made.left += [(group, await self.send(group, 100, passing)) for _ in range(2)]

    async def end(self, made: Generation) -> None:
        """Bring what a round made to its end, by every rule but time."""
        made.deleted.holds = made.fetched.holds = False
        await self.alice.post(f"/groups/{made.deleted.key}/delete")
        made.deleted.exists = False
        made.shortened.lives = 1
        await self.alice.set_expiry(made.shortened.key, 1)
        made.shortened.hides_after = 1
        await self.alice.set_expiry(made.fetched.key, 0)
        for group, number in made.left:
            group.endangered.add(number)
        await made.passing.post("/delete-account", password=PASSWORD)
        for group, number in made.left:
            group.hidden.add(number)

    async def stir(self) -> None:
        """Do a round's part; what is brought to its end was made two rounds ago, and moved in the last."""
        await self.talk()
        while len(self.generations) > 2:
            await self.end(self.generations.pop(0))

    async def read(self, reader: Client, group: Group, limit: int) -> None:
        """Page through a group: everything that is promised is there, once, whole, and nothing that is over."""
        acknowledged, over, exists = set(group.sent), group.hidden | group.gone, group.exists
        served: dict[int, Message] = {}
        while True:
            hides_after, asked = group.hides_after, int(time.time())
            try:
                page = await reader.fetch(group.key, max(served, default=0), limit)
            except RefusedError as refused:
                if refused.code != 400 or group.holds:
                    raise
                group.empty += not exists
                return  # it is deleted, or just being so
            if not page:
                break
            assert exists, "nobody is in a group that was deleted"
            for message in page:
                assert message.sequence_num > max(served, default=0), "each once, in order"
                assert message.created_at + hides_after >= asked, "nothing expired is served"
                served[message.sequence_num] = message
        now = int(time.time())
        promised = acknowledged - group.endangered if group.holds else set()
        lost = {number for number in promised - set(served) if group.sent[number].after + group.lives >= now}
        assert not lost, "nothing is lost"
        assert not served.keys() & over, "nothing that was hidden comes back"
        group.gone |= acknowledged - set(served)
        group.empty += bool(acknowledged) and acknowledged <= over
        for number in acknowledged & set(served):
            sent = group.sent[number]
            assert served[number].body == self.search.body(sent.body, sent.size), "whole"

    async def read_all(self, reader: Client, limit: int) -> None:
        """Page through all groups but those that have long been empty."""
        for group in list(self.groups):
            if group.empty < ENOUGH:
                await self.read(reader, group, limit)
        self.passes += 1

    @contextlib.asynccontextmanager
    async def being_read(self) -> AsyncIterator[None]:
        """Have both users read all the time; what they find wrong fails the test as soon as it shows."""

        async def go_on(reader: Client, limit: int) -> None:
            while True:
                await self.read_all(reader, limit)
                await asyncio.sleep(0.3)

        async with asyncio.TaskGroup() as readers:
            tasks = [readers.create_task(go_on(self.alice, 500)), readers.create_task(go_on(self.bob, 20))]
            yield
            for task in tasks:
                task.cancel()


async def kill_a_worker_with_its_java(folder: Path, world: World) -> None:
    """Have the server's own worker killed after it has written to the archive, and then the server."""
    env = {"CONCLAVE_FAILPOINT": "archive.appended=kill"}
    family: set[int] = set()
    with ServerProcess(folder, OFTEN + ARCHIVE, env, command=QUICK) as server:

        def has_ended() -> bool:
            family.update(server.descendants())
            return bool(happened(server, "cleanup_worker_ended"))

        await world.begin(server.url)
        async with world.being_read():
            await world.stir()
            await until(has_ended)
            passes = world.passes
            await until(lambda: world.passes > passes + 4)
        server.process.kill()
        server.process.wait()
    assert "status -9" in happened(server, "cleanup_worker_ended")[0]["reason"]
    await until(lambda: not any(map(alive, family)))


async def until(condition: Callable[[], bool]) -> None:
    """Wait, while others go on."""
    async with asyncio.timeout(2 * PATIENCE):
        while not condition():
            await asyncio.sleep(0.3)


def happened(server: ServerProcess, event: str) -> list[dict[str, Any]]:
    return [each for each in server.events() if each.get("event") == event]


class History:
    """Runs beside a server, some of which are killed."""

    def __init__(self, folder: Path, world: World, java: WarmJava) -> None:
        self.folder = folder
        self.world = world
        self.java = java

    async def run(self, failpoint: str = "") -> bool:
        """Do a run; tell whether it was killed. Any other end but a good one is an error."""
        return await self.do("cleanup", "run", "--config", "conclave.toml", failpoint=failpoint)

    async def restore(self, group: Group, failpoint: str = "") -> bool:
        """Restore a group, by settings with which nothing moves."""
        text = (self.folder / "conclave.toml").read_text()
        (self.folder / "still.toml").write_text(text.replace('after = "1s"', 'after = "-1"'))
        return await self.do("archive", "restore", group.key, "--config", "still.toml", failpoint=failpoint)

    async def do(self, *arguments: str, failpoint: str) -> bool:
        """Do what a command says, and have everybody read everything after it, too."""
        status, said = await self.java.conclave(*arguments, cwd=self.folder, failpoint=failpoint)
        assert status in ((0, -signal.SIGKILL) if failpoint else (0,)), said
        for reader, limit in ((self.world.alice, 500), (self.world.bob, 20)):
            await self.world.read_all(reader, limit)
        return status == -signal.SIGKILL

    async def die_at(self, point: str) -> None:
        """Have a run killed at a point of the archive, as soon as there is a reason to come there."""
        for attempt in range(TRIES):
            await self.world.stir()
            if await self.run(deadly(point) if attempt + 1 < TRIES else f"{point}=kill"):
                return
        raise AssertionError(f"{point} was not reached")


def deadly(point: str) -> str:
    return f"{point}=kill@{TIMES.get(point, 1)}"


async def restore_and_end(history: History, world: World) -> None:
    """Kill restores, each followed by a run; then let all be over that is to be over, and do the last run."""
    await history.run()
    for point in some(RESTORE_POINTS, 1, "points of a restore"):
        assert await history.restore(world.kept[-1], deadly(point)), f"{point} was not reached"
        await history.run()
    for made in world.generations:
        await world.end(made)
    over = time.time() + 2
    await until(lambda: time.time() > max(over, world.fades_until))
    await world.read_all(world.alice, 500)
    await world.read_all(world.bob, 500)
    await history.run()


async def check(folder: Path, world: World, *others: Path) -> None:
    """What should be there is, exactly; and nothing else can be read from any file, of it or in ``others``."""
    kept: set[int] = set()
    for group in world.groups:
        left = set(group.sent) - group.hidden if group in world.kept else set()
        if group.exists:
            assert set(await world.bob.numbers(group.key)) == left
        kept |= {group.sent[number].body for number in left}
    assert world.search.numbers_in(folder, *others) == kept, "nothing but what is kept is to be found"
    tiers = Tiers(Config(database_path=str(folder / "conclave.db")))
    tiers.expect_sound()
    for nothing in ("messages", "tombstones", "user_tombstones", "archive_state WHERE unerased"):
        assert tiers.query(f"SELECT count(*) FROM {nothing}") == [(0,)], nothing
    assert tiers.query("PRAGMA integrity_check") == [("ok",)]


async def test_kill_9_at_every_failpoint_of_the_archive_while_clients_read(tmp_path: Path, cleaner: Cleaner) -> None:
    """Each is reached: a process that was to be killed there has died of it."""
    async with ClientSession() as http:
        world = World(http)
        await kill_a_worker_with_its_java(tmp_path, world)
        java = cleaner.lend()
        with ServerProcess(tmp_path, RARELY + ARCHIVE, java.env, command=QUICK) as server:
            world.move_to(server.url)
            async with world.being_read():
                await until(lambda: bool(happened(server, "cleanup_run")))
                assert happened(server, "cleanup_run")[0]["error"] == "", "the first run goes on"
                history = History(tmp_path, world, java)
                for point in some(ARCHIVE_POINTS, 1, "points of the archive"):
                    await history.die_at(point)
                await restore_and_end(history, world)
            await check(tmp_path, world, cleaner.folder)
            server.stop()
