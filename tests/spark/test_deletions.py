"""Each kind of deletion, by each engine, in each tier: hidden at once, in no file after a run, and the rest whole."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from conclave.actions import holds, purges
from conclave.actions.command_runner import CommandRunner
from conclave.clock import FakeClock
from conclave.config.archive import ArchiveConfig
from conclave.config.cleanup import CleanupConfig
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention.resolve import Lifetimes
from tests.conftest import Running, StartServer
from tests.proof.stores import examined
from tests.support import sample
from tests.support.cleaner import Cleaner
from tests.support.client import PASSWORD, Client, RefusedError, expect
from tests.support.forensics import StoreSearch

HOUR, DAY = 3600, 86_400
OPERATOR = "operator root"
SIZES = [24, 31, 300, 900, 3000, 4100, 9000, 40_000] * 3
"""Of the messages that go, and of as many that stay."""


class World:
    """A server with two groups: carol's messages are in one, alice's in the other. Their bodies are numbered."""

    def __init__(self, start_server: StartServer, config: Config, clock: FakeClock, cleaner: Cleaner) -> None:
        self._start = start_server
        self.config = config
        self.clock = clock
        self._cleaner = cleaner
        self._stack = contextlib.AsyncExitStack()
        self.search = StoreSearch()
        self.bodies: dict[bytes, int] = {}
        self.going: set[int] = set()
        """Numbers of the bodies that are to be erased."""
        self.outside = CommandRunner(config, clock)

    @property
    def staying(self) -> set[int]:
        """The numbers of all other bodies."""
        return {*self.bodies.values()} - self.going

    async def begin(self) -> None:
        await self.serve()
        self.alice, self.bob, self.carol = await self.server.users("alice", "bob", "carol")
        self.group, self.other = [await self.alice.create_group(name) for name in ("group", "other")]
        for user in (self.bob, self.carol):
            await user.join(self.group)
            await user.join(self.other)

    async def serve(self, *, accepts_change: bool = False, **settings: Any) -> None:
        """Start a server, after the one before has stopped. Whoever was logged in stays so."""
        await self._stack.aclose()
        self.config = replace(self.config, **settings)
        self.outside = CommandRunner(self.config, self.clock)
        started = self._start(self.config, accepts_change=accepts_change)
        self.server: Running = await self._stack.enter_async_context(started)
        for name, user in vars(self).items():
            if isinstance(user, Client):
                setattr(self, name, Client(self.server.http, self.server.url, user.token, user.user_id))

    async def stop(self) -> None:
        await self._stack.aclose()

    async def fill(self) -> None:
        """Send what goes and what stays, one after the other; with an archive, all of it lies there afterwards."""
        for size in SIZES:
            self.going.add(len(self.bodies))
            await self.carol.send(self.group, self.body(size))
            await self.alice.send(self.other, self.body(size))
        self.clock.advance(2)
        if self.config.archive.after > 0:
            assert (await self.cleanup())["archived"] == 2 * len(SIZES)

    def body(self, size: int) -> bytes:
        """Make a body, and know it."""
        number = len(self.bodies)
        body = self.search.body(number, size)
        self.bodies[body] = number
        return body

    async def served(self) -> set[int]:
        """Return the numbers of what alice and bob are served, whole."""
        found: set[int] = set()
        for user in (self.alice, self.bob):
            for group in (self.group, self.other):
                with contextlib.suppress(RefusedError):  # the group was deleted
                    found |= {self.bodies[each.body] for each in await user.fetch(group, 0, 500)}
        return found

    async def cleanup(self) -> dict[str, Any]:
        await self.server.settle()
        return await asyncio.to_thread(self._cleaner.run, self.config, self.clock.now(), self.clock.set_by)

    async def in_files(self) -> set[int]:
        """Return the numbers of the bodies of which a piece is in any file, of the server or of Spark."""
        beside = await asyncio.to_thread(self.search.numbers_in, self.config.database.parent)
        return beside | self.search.numbers_in(self._cleaner.folder)


async def by_time(world: World) -> None:
    await world.fill()
    await world.alice.set_expiry(world.group, HOUR)
    world.clock.advance(HOUR + 1)


async def by_watermark(world: World) -> None:
    """It may be served again until the run."""
    await world.fill()
    await world.alice.set_expiry(world.group, 0)
    for user in (world.alice, world.bob, world.carol):
        await user.numbers(world.group)


async def with_its_group(world: World) -> None:
    await world.fill()
    await world.alice.post(f"/groups/{world.group}/delete")


async def with_its_account(world: World) -> None:
    await world.fill()
    await world.carol.post("/delete-account", password=PASSWORD)


async def a_session(world: World) -> None:
    """With it goes nothing that its user has sent."""
    await world.fill()
    world.going.clear()
    world.clock.advance(world.config.token_ttl_seconds + HOUR)
    await expect(world.carol.get("/groups"), 401, 202)
    await world.alice.login("alice")
    await world.bob.login("bob")


async def an_invite(world: World) -> None:
    """Its commit, welcome and group info go, and no message."""
    await world.fill()
    world.going.clear()
    dave = await world.server.user("dave")
    world.going.add(len(world.bodies))
    await world.alice.invite(world.group, dave, world.body(3000))
    world.clock.advance(world.config.invite_ttl_seconds + 1)
    assert await dave.invited_to() == []


async def by_a_purge(world: World) -> None:
    await world.fill()
    outside, group_id = world.outside, UUID(world.group).bytes
    context, now = outside.context(), world.clock.now()
    await asyncio.to_thread(lambda: outside.write(purges.purge, context, OPERATOR, group_id, now))


async def by_a_removed_override(world: World) -> None:
    long = Lifetimes(max_lifetime=90 * DAY)
    both = {str(UUID(group)): long for group in (world.group, world.other)}
    await world.serve(message_retention=7 * DAY, retention=RetentionConfig(groups=both))
    await world.fill()
    world.clock.advance(8 * DAY)
    assert await world.served() == {*world.bodies.values()}
    assert sum((await world.cleanup())["deleted"].values()) == 0
    del both[str(UUID(world.group))]
    await world.serve(retention=RetentionConfig(groups=both), accepts_change=True)


async def by_a_released_hold(world: World) -> None:
    await world.fill()
    context = world.outside.context()
    covered = await asyncio.to_thread(world.outside.read, holds.find_group, world.group)
    held = await asyncio.to_thread(world.outside.write, holds.add, context, OPERATOR, covered, "case 17")
    await world.alice.set_expiry(world.group, HOUR)
    world.clock.advance(HOUR + 1)
    assert await world.served() == world.staying, "a hold shows nothing"
    assert sum((await world.cleanup())["deleted"].values()) == 0
    assert await world.in_files() == {*world.bodies.values()}, "and keeps the bytes"
    await asyncio.to_thread(world.outside.write, holds.release, context, OPERATOR, held.hold_id)


Delete = Callable[[World], Awaitable[None]]

DELETIONS: dict[Delete, tuple[str, int]] = {
    by_time: ("expired", len(SIZES)),
    by_watermark: ("fetched", len(SIZES)),
    with_its_group: ("deleted_group", len(SIZES)),
    with_its_account: ("deleted_account", len(SIZES)),
    a_session: ("sessions", 3),
    an_invite: ("invites", 1),
    by_a_purge: ("expired", len(SIZES)),
    by_a_removed_override: ("expired", len(SIZES)),
    by_a_released_hold: ("expired", len(SIZES)),
}
"""By which rule the run deletes how much: messages, sessions or invites."""

NO_MESSAGES = (a_session, an_invite)
PLACES = [
    *((place, delete) for place in ("sql-hot", "spark-hot") for delete in DELETIONS),
    *(("spark-archive", delete) for delete in DELETIONS if delete not in NO_MESSAGES),
]


def cases() -> list[Any]:
    """All by the SQL engine; a sample of those that need Spark, of both tiers."""
    chosen = [case for case in PLACES if case[0] == "sql-hot"]
    for place, count in (("spark-hot", 1), ("spark-archive", 2)):
        chosen += sample.some([case for case in PLACES if case[0] == place], count, f"deletions, {place}")
    slow = {"spark-archive": pytest.mark.system}
    return [
        pytest.param(place, delete, id=f"{place}-{delete.__name__}", marks=slow.get(place, ()))
        for place, delete in chosen
    ]


@pytest.mark.parametrize(("place", "delete"), cases())
async def test_what_was_deleted_is_hidden_and_then_in_no_file_and_the_rest_is_whole(
    config: Config, start_server: StartServer, clock: FakeClock, cleaner: Cleaner, place: str, delete: Delete
) -> None:
    engine, tier = place.split("-")
    archive = ArchiveConfig(after=1, margin=0) if tier == "archive" else ArchiveConfig()
    config = replace(config, cleanup=CleanupConfig(engine=engine, disk_reserve=0), archive=archive)
    world = World(start_server, config, clock, cleaner)
    try:
        await world.begin()
        await delete(world)
        assert (await world.in_files()) == {*world.bodies.values()}, "the search sees all of them before the run"
        shown = world.staying - ({max(world.bodies.values())} if delete is an_invite else set())
        if delete is not by_watermark:
            assert await world.served() == shown, "hidden at once"
        report = await world.cleanup()
        rule, count = DELETIONS[delete]
        assert report["deleted"][rule] == count
        assert sum(report["deleted"].values()) == count, "and nothing by any other rule"
        assert await world.in_files() == world.staying
        assert await world.served() == shown
    finally:
        await world.stop()
    assert examined(world.config) == [], "and so says the proof"
