"""Readers of several accounts exhaust the memory for responses in random ways; others are served as ever."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from conclave import app_keys
from conclave.config.limits import LimitsConfig
from conclave.config.settings import Config
from conclave.store import bodies
from conclave.store.resources import welcomes
from tests.conftest import Running, StartServer
from tests.support import sample
from tests.support.client import Client, RefusedError, encode
from tests.support.lists import CASES, Scene, add_members, fill, scene_of
from tests.support.protobuf import ProtobufClient
from tests.support.server import PATIENCE, until
from tests.support.slow import raw

pytestmark = pytest.mark.system

KIB = 1024
GREEDY = 14
"""An account gets an eighth of the memory at most: eight that wait at the same time take all of it."""
READERS = 3
"""Each greedy account reads over three connections at once."""


@dataclass
class Greedy:
    """An account that takes what memory there is."""

    client: Client
    scene: Scene
    paths: list[str] = field(default_factory=list)
    """What it asks for: pages of large messages, and lists."""


async def greedy(running: Running, name: str, kind: type[Client]) -> Greedy:
    """Return an account with large messages and long lists."""
    client = await kind.register(running.http, running.url, name)
    scene = await scene_of(running, client, f"of_{name}")
    group = str(UUID(bytes=scene.group_id))
    chance = random.Random(name)
    for _ in range(12):
        await client.send(group, chance.randbytes(500 * KIB))
    await client.post(f"/groups/{group}/commit", group_info=encode(chance.randbytes(700 * KIB)))
    await add_members(running, scene, [f"{name}_m{number}" for number in range(500)])
    for index, case in enumerate(CASES.values()):
        await fill(running, case, scene, [f"{name}_{index}_{number}" for number in range(150)])

    def with_bodies(connection: Any) -> None:
        for _ in range(10):
            body = bodies.put(connection, chance.randbytes(900 * KIB))
            welcomes.add(connection, scene.group_key, scene.user_id, body)

    await running.app[app_keys.STORE].write(with_bodies)
    lists = [scene.path(case.path) for case in CASES.values()]
    large = [f"/groups/{group}/messages?limit=500", f"/groups/{group}/group-info", "/welcomes"]
    return Greedy(client, scene, [*lists, *large * len(lists)])


async def read_greedily(running: Running, account: Greedy, chance: random.Random) -> None:
    """Ask for several things at once, and take as much of them, as fast, as chance has it. Never ends."""
    while True:
        asked = b"".join(account.client.raw_get(chance.choice(account.paths)) for _ in range(chance.randrange(1, 4)))
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with raw(running, asked) as (reader, _), asyncio.timeout(chance.choice((0.05, 1, 20))):
                pause = chance.choice((0, 0.5, 60))
                while await reader.read(chance.choice((100, 64 * KIB))):
                    await asyncio.sleep(pause)


class Others:
    """Accounts that go on as ever: what each read must say is known."""

    def __init__(self, running: Running, alice: Client, scene: Scene, clock: Callable[[], float]) -> None:
        self.running, self.alice, self.scene, self._clock = running, alice, scene, clock
        self.group = str(UUID(bytes=scene.group_id))
        self.served: Counter[str] = Counter()
        self._number = 0

    def name(self) -> str:
        self._number += 1
        return f"n{self._number}"

    async def log_in_and_out(self) -> None:
        """A fresh login is known at once, and one that is over is not."""
        phone = await self.alice.another("alice")
        for path in ("/me", "/groups", "/invites"):
            await phone.get(path)
        shown = await Client(phone.http, phone.url, phone.token).get("/sessions", limit=1)
        assert shown["sessions"][0]["current"]
        await phone.post("/logout")
        for path in ("/me", "/groups", "/welcomes", f"/groups/{self.group}/admins"):
            await refused(phone.get(path), 401, 202)

    async def join_and_be_removed(self) -> None:
        """A new member is let in at once, and one who was removed is not."""
        bob = await self.running.user(self.name())
        await bob.join(self.group)
        assert self.group in [each["group_id"] for each in (await bob.get("/groups"))["groups"]]
        await bob.get(f"/groups/{self.group}/admins")
        await self.alice.act("ban", self.group, bob)
        assert (await bob.get("/groups"))["groups"] == []
        for path in ("messages", "admins", "retention"):
            await refused(bob.get(f"/groups/{self.group}/{path}"), 401, 400)
        banned = (await self.alice.get(f"/groups/{self.group}/banned"))["users"]
        assert banned[-1]["user_id"] == bob.user_id
        await self.alice.act("unban", self.group, bob)
        await refused(bob.get(f"/groups/{self.group}/banned"), 401, 401)

    async def see_own_changes(self) -> None:
        """Whoever was answered sees it in what is read next."""
        name = self.name()
        group = (await self.alice.post("/groups", group_name=name))["group_id"]
        assert group in [each["group_id"] for each in (await self.alice.get("/groups"))["groups"]]
        await self.alice.patch(group, visibility="public")
        assert [each["group_id"] for each in (await self.alice.get("/groups/public", pattern=name))["groups"]] == [
            group
        ]
        number = await self.alice.send(self.group, name.encode())
        assert [each.body for each in await self.alice.fetch(self.group, number - 1)] == [name.encode()]
        await self.alice.post(f"/groups/{group}/delete")
        assert group not in [each["group_id"] for each in (await self.alice.get("/groups"))["groups"]]

    async def ask_for_each_list(self) -> None:
        """Nobody's lists keep others from theirs."""
        sessions = Client(self.alice.http, self.alice.url, self.alice.token)
        for name, case in CASES.items():
            asker = sessions if case.field == "sessions" else self.alice
            answer = await asker.get(self.scene.path(case.path))
            assert set(answer) == {case.field, "more"}
            self.served[name] += 1

    async def ask_for_group_info(self) -> None:
        """A response with one body is served to others too."""
        assert await self.alice.group_info(self.group) == b"group info"
        self.served["group info"] += 1

    async def go_on(self, seconds: float, chance: random.Random, is_over: Callable[[], bool] = lambda: True) -> None:
        """Do all of this in any order, for as long, each at least once, and until ``is_over()``."""
        ends = self._clock() + seconds
        steps: list[Callable[[], Awaitable[None]]] = [
            *(self.log_in_and_out, self.join_and_be_removed, self.see_own_changes),
            *(self.ask_for_each_list, self.ask_for_group_info),
        ]
        while True:
            for step in chance.sample(steps, len(steps)):
                await step()
                self.served[step.__name__] += 1
            if self._clock() > ends and is_over():
                break


async def refused(request: Awaitable[Any], status: int, code: int) -> None:
    with pytest.raises(RefusedError) as error:
        await request
    assert (error.value.status, error.value.code) == (status, code)


async def test_whoever_exhausts_the_memory_others_read_what_is_and_are_served(
    config: Config, start_server: StartServer
) -> None:
    small = Config(
        database_path=config.database_path,
        cleanup=config.cleanup,
        limits=LimitsConfig(response_memory="16m", registrations_per_address=10_000),
    )
    chance = sample.chance("exhausted memory")
    async with start_server(small) as running:
        accounts = [
            await greedy(running, f"greedy{at}", chance.choice((Client, ProtobufClient))) for at in range(GREEDY)
        ]
        alice = await Client.register(running.http, running.url, "alice")
        scene = await scene_of(running, alice)
        group = str(UUID(bytes=scene.group_id))
        await alice.post(f"/groups/{group}/commit", group_info=encode(b"group info"))
        await alice.patch(group, visibility="public")
        readers = [
            asyncio.create_task(read_greedily(running, each, random.Random(chance.random())))
            for each in accounts
            for _ in range(READERS)
        ]
        memory, others = running.app[app_keys.BUDGET], Others(running, alice, scene, time.monotonic)
        try:
            seconds = sample.amount(600, 30)
            async with asyncio.timeout(seconds + PATIENCE):
                await others.go_on(seconds, chance, lambda: memory.cut_off["memory"] > 0)
        finally:
            for each in readers:
                each.cancel()
            ended = await asyncio.gather(*readers, return_exceptions=True)
        assert [each for each in ended if not isinstance(each, asyncio.CancelledError)] == []
        assert {*CASES, "group info"} <= set(others.served)
        await until(lambda: memory.used == 0)
        async with asyncio.timeout(PATIENCE):
            await others.go_on(0, chance)
