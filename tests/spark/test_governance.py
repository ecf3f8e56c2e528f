"""The scenarios of the retention contract, over HTTP: by each engine, with messages in each tier."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from conclave import app_keys
from conclave.actions import holds
from conclave.actions.command_runner import CommandRunner
from conclave.config.archive import ArchiveConfig
from conclave.config.cleanup import CleanupConfig
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention.jobs import ALL, PurgeJob, Scope
from conclave.retention.policy import KEEP
from conclave.retention.resolve import LifetimeLimits, LifetimeRange, Lifetimes
from tests.conftest import Running, StartServer
from tests.support.cleaner import Cleaner
from tests.support.client import Client, expect

HOUR, DAY = 3600, 86_400
MINUTE = 60


class Place:
    """A server whose messages lie in one tier, with runs by one engine."""

    def __init__(self, server: Running, cleaner: Cleaner, tier: str) -> None:
        self.server = server
        self.clock = server.clock
        self._cleaner = cleaner
        self._tier = tier

    async def store(self, sender: Client, group: str, count: int = 1) -> None:
        """Send messages that lie in the tier afterwards. It takes 2 seconds."""
        for _ in range(count):
            await sender.send(group)
        self.clock.advance(2)
        if self._tier == "archive":
            assert (await self._run(ALL))["archived"] == count

    async def stored(self) -> int:
        """Return how many messages there are in both tiers, hidden ones included."""
        rows = await self.server.query(
            "SELECT (SELECT count(*) FROM messages) + (SELECT ifnull(sum(message_count), 0) FROM archive_parts)"
        )
        return int(rows[0][0])

    async def cleanup(self, scope: Scope = ALL) -> int:
        """Do a run; return how many messages it has deleted."""
        deleted = (await self._run(scope))["deleted"]
        return sum(count for rule, count in deleted.items() if rule not in ("sessions", "invites"))

    async def _run(self, scope: Scope) -> dict[str, Any]:
        await self.server.settle()
        clock = self.clock
        return await asyncio.to_thread(self._cleaner.run, self.server.config, clock.now(), clock.set_by, scope=scope)

    async def hold(self, group: str) -> Callable[[], Any]:
        """Put a legal hold on a group; return what releases it."""
        outside = CommandRunner(self.server.config, self.clock)

        def add() -> int:
            covered = outside.read(holds.find_group, group)
            return outside.write(holds.add, outside.context(), "operator root", covered, "case 17").hold_id

        hold_id = await asyncio.to_thread(add)
        return lambda: outside.write(holds.release, outside.context(), "operator root", hold_id)


Start = Callable[..., AbstractAsyncContextManager[Place]]


@pytest.fixture(params=["sql-hot", "spark-hot", pytest.param("spark-archive", marks=pytest.mark.system)])
def start(request: pytest.FixtureRequest, config: Config, start_server: StartServer, cleaner: Cleaner) -> Start:
    """Start a server with settings of ``[retention]``, and others by name."""
    engine, tier = request.param.split("-")
    archive = ArchiveConfig(after=1, margin=0) if tier == "archive" else ArchiveConfig()

    @asynccontextmanager
    async def started(
        retention: RetentionConfig | None = None, *, accepts_change: bool = False, **settings: Any
    ) -> AsyncIterator[Place]:
        cleanup = CleanupConfig(engine=engine, disk_reserve=0)
        changed = replace(
            config, cleanup=cleanup, archive=archive, retention=retention or RetentionConfig(), **settings
        )
        async with start_server(changed, accepts_change=accepts_change) as server:
            yield Place(server, cleaner, tier)

    return started


async def test_rows_that_expired_stay_hidden_and_go_with_the_next_run_of_any_job(start: Start) -> None:
    async with start() as place:
        alice = await place.server.user("alice")
        group = await alice.create_group("g", expiry=HOUR)
        await place.store(alice, group)
        place.clock.advance(2 * HOUR)
        await alice.set_expiry(group, -1)
        assert await alice.numbers(group) == []
        young = await alice.send(group)
        assert await place.cleanup(Scope("short", PurgeJob(1, KEEP, HOUR), is_housekeeping=False)) == 1
        assert await alice.numbers(group) == [young]
        assert await place.stored() == 1


async def test_what_all_fetched_under_a_hold_is_hidden_for_whoever_joins_and_kept(start: Start) -> None:
    async with start() as place:
        alice, bob, carol = await place.server.users("alice", "bob", "carol")
        group = await alice.create_group("g")
        await bob.join(group)
        await place.store(alice, group, 3)
        await alice.set_expiry(group, 0)
        release = await place.hold(group)
        await bob.numbers(group)
        assert await place.cleanup() == 0
        await carol.join(group)
        assert [await each.numbers(group) for each in (alice, bob, carol)] == [[], [], []]
        assert await place.stored() == 3
        assert (await carol.get(f"/groups/{group}/retention"))["legal_hold"]
        await asyncio.to_thread(release)
        assert await place.cleanup() == 3
        assert await place.stored() == 0


async def test_history_that_a_newcomer_has_not_fetched_stays_until_then(start: Start) -> None:
    async with start() as place:
        alice, bob, carol = await place.server.users("alice", "bob", "carol")
        group = await alice.create_group("g")
        await bob.join(group)
        await place.store(alice, group, 10)
        await alice.numbers(group)
        await bob.numbers(group)
        await carol.join(group)
        await alice.set_expiry(group, 0)
        assert await place.cleanup() == 0
        assert await carol.numbers(group) == list(range(1, 11))
        assert await place.cleanup() == 10


async def test_who_leaves_and_comes_back_revives_nothing(start: Start) -> None:
    async with start() as place:
        alice, bob = await place.server.users("alice", "bob")
        group = await alice.create_group("g")
        await bob.join(group)
        await place.store(alice, group, 10)
        await alice.set_expiry(group, 0)
        await bob.fetch(group, 0, 3)
        await bob.leave(group)
        await bob.join(group)
        assert await place.cleanup() == 10
        assert await bob.numbers(group) == []


async def test_a_joiner_may_still_get_what_all_had_fetched_until_the_next_run(start: Start) -> None:
    async with start() as place:
        alice, bob, carol = await place.server.users("alice", "bob", "carol")
        group = await alice.create_group("g")
        await bob.join(group)
        await place.store(alice, group, 10)
        await alice.set_expiry(group, 0)
        await bob.numbers(group)
        await place.server.settle()
        await carol.join(group)
        assert await carol.numbers(group) == list(range(1, 11))
        assert await place.cleanup() == 10
        assert await carol.numbers(group) == []


async def test_a_limit_alone_lets_nothing_expire(start: Start) -> None:
    async with start(RetentionConfig(limits=LifetimeLimits(max_lifetime=LifetimeRange(min=DAY)))) as place:
        alice = await place.server.user("alice")
        group = await alice.create_group("g")
        await place.store(alice, group)
        place.clock.advance(365 * DAY)
        await alice.login("alice")
        assert await place.cleanup() == 0
        assert await alice.numbers(group) == [1]


async def test_a_least_lifetime_delays_erasure_and_shows_nothing(start: Start) -> None:
    async with start() as place:
        alice, bob = await place.server.users("alice", "bob")
        group = await alice.create_group("g")
        await bob.join(group)
        await place.store(alice, group)
        await alice.patch(group, min_lifetime_seconds=DAY, update_min_lifetime=True)
        await alice.set_expiry(group, 0)
        place.clock.advance(MINUTE)
        await bob.numbers(group)
        assert await place.cleanup() == 0
        assert await bob.numbers(group) == await alice.numbers(group) == []
        place.clock.advance(DAY - MINUTE - 3)
        assert await place.cleanup() == 0, "a second is missing"
        assert await place.stored() == 1
        place.clock.advance(1)
        assert await place.cleanup() == 1
        assert await place.stored() == 0


async def test_an_override_is_final_even_where_the_server_deletes_after_fetch(start: Start) -> None:
    async with start() as place:
        alice, bob = await place.server.users("alice", "bob")
        group = await alice.create_group("g")
        await bob.join(group)
        await place.store(alice, group)
    override = RetentionConfig(groups={group: Lifetimes(max_lifetime=30 * DAY)})
    async with start(override, message_retention=0) as place:
        alice, bob = [type(each)(place.server.http, place.server.url, each.token) for each in (alice, bob)]
        assert await bob.numbers(group) == await alice.numbers(group) == [1]
        assert (await alice.get(f"/groups/{group}/retention"))["policy_source"] == "override"
        assert await place.cleanup() == 0
        place.clock.advance(30 * DAY - 2)
        assert await bob.numbers(group) == [1]
        assert await place.cleanup() == 0
        place.clock.advance(1)
        assert await bob.numbers(group) == []
        assert await place.cleanup() == 1
    async with start(message_retention=0) as place:
        alice = type(alice)(place.server.http, place.server.url, alice.token)
        await alice.send(group)
        assert (await alice.get(f"/groups/{group}/retention"))["policy_source"] == "server"


@pytest.mark.parametrize("hold_limit", [KEEP, 30 * DAY])
async def test_a_member_who_never_fetches_holds_back_until_the_limit_if_there_is_one(
    start: Start, hold_limit: int
) -> None:
    async with start(RetentionConfig(fetch_hold_limit=hold_limit), message_retention=30 * DAY) as place:
        alice, bob = await place.server.users("alice", "bob")
        group = await alice.create_group("g")
        await bob.join(group)
        await place.store(alice, group)
        await alice.set_expiry(group, 0)
        place.clock.advance(40 * DAY)
        await bob.login("bob")
        held = hold_limit == KEEP
        assert await place.cleanup() == (0 if held else 1)
        assert await place.stored() == (1 if held else 0)
        assert await bob.numbers(group) == ([1] if held else [])


async def test_a_longer_retention_after_a_stop_serves_what_was_young_enough_when_it_stopped(start: Start) -> None:
    async with start(message_retention=7 * DAY) as place:
        alice = await place.server.user("alice")
        group = await alice.create_group("g")
        await place.store(alice, group)
        place.clock.advance(DAY)
        await place.store(alice, group)
        place.clock.advance(6 * DAY)
    place.clock.advance(10 * DAY)
    async with start(message_retention=30 * DAY) as place:
        alice = type(alice)(place.server.http, place.server.url)
        await alice.login("alice")
        assert await alice.numbers(group) == [2]
        assert await place.cleanup() == 1
        assert await place.stored() == 1


async def test_what_somebody_sent_before_fetching_stays_until_that_member_fetches(start: Start) -> None:
    async with start() as place:
        alice, bob = await place.server.users("alice", "bob")
        group = await alice.create_group("g")
        await bob.join(group)
        await alice.send(group)
        await bob.send(group)
        place.clock.advance(2)
        await place.cleanup()  # in the archive it moves
        await alice.set_expiry(group, 0)
        await alice.numbers(group)
        assert await place.cleanup() == 0
        assert await bob.numbers(group) == [1, 2]
        assert await place.cleanup() == 2


async def test_with_next_fetch_what_was_read_is_held_until_the_reader_calls_again(start: Start) -> None:
    async with start(RetentionConfig(fetch_confirmation="next_fetch")) as place:
        alice, bob = await place.server.users("alice", "bob")
        group = await alice.create_group("g")
        await bob.join(group)
        await place.store(alice, group)
        await alice.set_expiry(group, 0)
        assert await bob.numbers(group) == [1]
        assert await place.cleanup() == 0
        assert (await alice.get(f"/groups/{group}/retention"))["held_by"] == [bob.user_id]
        assert await bob.numbers(group, after=1) == []
        assert await place.cleanup() == 1


async def test_a_clock_a_year_ahead_erases_nothing_and_moves_no_mark(start: Start) -> None:
    async with start(token_ttl_seconds=1000 * DAY) as place:
        alice, bob = await place.server.users("alice", "bob")
        group = await alice.create_group("g", expiry=HOUR)
        await bob.join(group)
        await place.store(alice, group)
        marks = await place.server.query("SELECT floor_seq, gone_below, expired_before FROM groups")
        place.clock.set_wrong(365 * DAY)
        server = place.server
        report = await asyncio.to_thread(place._cleaner.try_run, server.config, server.clock.now(), server.clock.set_by)
        assert "set forward" in report["error"]
        await expect(alice.set_expiry(group, -1), 503, 0)
        assert await place.stored() == 1
        assert await server.query("SELECT floor_seq, gone_below, expired_before FROM groups") == marks
        assert "clock" in server.app[app_keys.HEALTH].faults


async def test_an_override_that_is_removed_lets_go_at_once_and_what_should_stay_stays(start: Start) -> None:
    async with start(message_retention=7 * DAY) as place:
        alice = await place.server.user("alice")
        covered, other = [await alice.create_group(name) for name in ("covered", "other")]
    override = RetentionConfig(groups={str(UUID(covered)): Lifetimes(max_lifetime=90 * DAY)})
    async with start(override, message_retention=7 * DAY) as place:
        alice = type(alice)(place.server.http, place.server.url, alice.token)
        await place.store(alice, covered)
        place.clock.advance(8 * DAY)
        await place.store(alice, other)
        assert await alice.numbers(covered) == [1]
        assert await place.cleanup() == 0
    async with start(message_retention=7 * DAY, accepts_change=True) as place:
        alice = type(alice)(place.server.http, place.server.url, alice.token)
        assert await alice.numbers(covered) == []
        assert await place.cleanup() == 1
        assert await alice.numbers(other) == [1]
        assert await place.stored() == 1


async def test_nothing_is_erased_while_retention_is_not_enabled(start: Start) -> None:
    async with start(RetentionConfig(enabled=False)) as place:
        alice = await place.server.user("alice")
        group, deleted = await alice.create_group("g", expiry=HOUR), await alice.create_group("deleted")
        await place.store(alice, group)
        await place.store(alice, deleted)
        await alice.post(f"/groups/{deleted}/delete")
        place.clock.advance(2 * HOUR)
        assert await alice.numbers(group) == []
        assert await place.cleanup() == 0
        assert await place.stored() == 2
    async with start() as place:
        assert await place.cleanup() == 2
        assert await place.stored() == 0
