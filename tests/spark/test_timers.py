"""What is redacted for everybody is erased by the next run of any job, by either engine; what is not, stays."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
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
from conclave.retention.resolve import Lifetimes
from conclave.store.engine import sqlite
from conclave.store.resources import receipts
from tests.conftest import Running, StartServer
from tests.support.cleaner import Cleaner
from tests.support.client import Client
from tests.support.forensics import StoreSearch
from tests.support.listening import listening

HOUR, DAY = 3600, 86_400

Clean = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
def config(config: Config) -> Config:
    return replace(config, retention=RetentionConfig(self_destruct_max_age=9 * DAY))


@pytest.fixture
def clean(engine: str, cleaner: Cleaner) -> Clean:
    async def run(server: Running, scope: Scope = ALL, **changes: Any) -> dict[str, Any]:
        await server.settle()
        config = replace(server.config, cleanup=CleanupConfig(engine=engine, disk_reserve=0), **changes)
        done: dict[str, Any] = await asyncio.to_thread(
            cleaner.run, config, server.clock.now(), server.clock.set_by, scope=scope
        )
        return done

    return run


async def room(running: Running) -> tuple[list[Client], str]:
    users = await running.users("alice", "bob", "carol")
    group = await users[0].create_group("friends")
    for member in users[1:]:
        await member.join(group)
    return users, group


async def test_it_is_erased_once_the_last_reader_has_it_redacted(running: Running, clean: Clean) -> None:
    (alice, bob, carol), group = await room(running)
    search, folder = StoreSearch(), Path(running.config.database).parent
    for number in range(1, 7):
        await alice.send(group, search.body(number, 5_000), HOUR if number % 2 else 0)
    await bob.read(group, 6)
    await carol.read(group, 3)
    running.clock.advance(HOUR - 1)
    assert not (await clean(running))["deleted"].get("redacted")
    running.clock.advance(1)
    assert await bob.numbers(group) == [2, 4, 6]
    assert (await clean(running))["deleted"]["redacted"] == 2, "but not 5, which carol has not read"
    assert search.numbers_in(folder) == {2, 4, 5, 6}
    assert await carol.numbers(group) == [2, 4, 5, 6]
    assert (await clean(running))["deleted"]["redacted"] == 0
    await carol.leave(group)
    assert (await clean(running))["deleted"]["redacted"] == 1, "the last one who could read it has left"
    assert search.numbers_in(folder) == {2, 4, 6}
    assert await bob.numbers(group) == [2, 4, 6]
    assert await running.query("SELECT sum(self_destructs) FROM groups") == [(0,)]
    while await running.query("SELECT 1 FROM timers"):  # those of whose end nobody was told yet
        await running.settle()
    with closing(sqlite.connect(running.config.database)) as connection:
        told = receipts.of_group(connection, UUID(group).bytes, 9)
        assert sorted((each.rule, each.messages) for each in told) == [("redacted", 1), ("redacted", 2)]


async def test_readers_hear_of_an_end_although_the_message_was_erased_first(
    config: Config, start_server: StartServer, cleaner: Cleaner
) -> None:
    """A run that erases while no server runs does not keep the server from telling them."""
    async with start_server(config) as running:
        (alice, bob, carol), group = await room(running)
        await alice.send(group, b"secret", HOUR)
        for each in (bob, carol):
            await each.read(group, 1)
        await running.settle()
    running.clock.advance(HOUR)
    sql = replace(config, cleanup=CleanupConfig(engine="sql", disk_reserve=0))
    for deleted in (1, 0):
        report = await asyncio.to_thread(cleaner.run, sql, running.clock.now(), running.clock.set_by)
        assert report["deleted"]["redacted"] == deleted
    async with start_server(config) as running:
        for each in (alice, bob, carol):
            each.http, each.url = running.http, running.url
            async with listening(each) as stream:
                assert await stream.next() == ("message_redacted", {"group_id": group, "sequence_num": 1})
        left = "SELECT (SELECT count(*) FROM timers), (SELECT count(*) FROM ended_timers)"
        assert await running.query(left) == [(0, 0)]


async def test_it_stays_for_those_who_have_read_it_although_it_is_too_old_for_others(
    running: Running, clean: Clean
) -> None:
    (alice, bob, _), group = await room(running)
    await alice.send(group, b"secret", 20 * DAY)
    running.clock.advance(8 * DAY)
    await bob.read(group, 1)
    running.clock.advance(20 * DAY - 1)
    assert (await clean(running))["deleted"]["redacted"] == 0
    assert await bob.numbers(group) == [1]
    running.clock.advance(1)
    assert (await clean(running))["deleted"]["redacted"] == 1


async def test_nobody_but_those_who_were_members_is_waited_for(running: Running, clean: Clean) -> None:
    (alice, bob, carol), group = await room(running)
    await alice.send(group, b"secret", HOUR)
    await bob.leave(group)
    await bob.join(group)
    await carol.read(group, 1)
    await running.user("dave")
    running.clock.advance(HOUR)
    assert (await clean(running))["deleted"]["redacted"] == 1


async def test_who_never_reads_holds_it_back_for_no_longer_than_is_set(running: Running, clean: Clean) -> None:
    (alice, _, _), group = await room(running)
    await alice.send(group, b"secret", HOUR)
    await alice.send(group, b"plain")
    running.clock.advance(9 * DAY)
    assert (await clean(running))["deleted"]["redacted"] == 0
    running.clock.advance(1)
    assert (await clean(running))["deleted"]["redacted"] == 1
    assert await alice.numbers(group) == [2]


async def test_a_hold_and_a_least_lifetime_keep_the_bytes_and_hide(running: Running, clean: Clean) -> None:
    (alice, bob, carol), group = await room(running)
    await alice.patch(group, min_lifetime_seconds=DAY, update_min_lifetime=True)
    await alice.send(group, b"secret", HOUR)
    for each in (bob, carol):
        await each.read(group, 1)
    running.clock.advance(HOUR)
    assert [await each.numbers(group) for each in (alice, bob, carol)] == [[], [], []]
    assert (await clean(running))["deleted"]["redacted"] == 0
    outside = CommandRunner(running.config, running.clock)
    covered = outside.read(holds.find_group, group)
    added = outside.write(holds.add, outside.context(), "operator root", covered, "case")
    running.clock.advance(DAY)
    report = await clean(running)
    assert (report["deleted"]["redacted"], report["held"]) == (0, 1)
    outside.write(holds.release, outside.context(), "operator root", added.hold_id)
    assert (await clean(running))["deleted"]["redacted"] == 1


async def test_the_groups_expiry_applies_too(running: Running, clean: Clean) -> None:
    (alice, bob, _), group = await room(running)
    await alice.set_expiry(group, 60)
    await alice.send(group, b"secret", HOUR)
    await bob.read(group, 1)
    running.clock.advance(61)
    assert await bob.numbers(group) == []
    assert await bob.fetch(group, include_redacted=True) == []
    deleted = (await clean(running))["deleted"]
    assert (deleted["expired"], deleted["redacted"]) == (1, 0)
    assert await running.query("SELECT count(*) FROM timers") == [(0,)]


async def test_fetched_by_all_it_goes_before_its_timers_end(running: Running, clean: Clean) -> None:
    members, group = await room(running)
    await members[0].set_expiry(group, 0)
    await members[0].send(group, b"secret", HOUR)
    for each in members:
        await each.numbers(group)
    assert (await clean(running))["deleted"]["fetched"] == 1


async def test_it_belongs_to_every_job(running: Running, clean: Clean) -> None:
    (alice, bob, carol), group = await room(running)
    for number in (1, 2):
        await alice.send(group, b"secret", HOUR * number)
    for each in (bob, carol):
        await each.read(group, 2)
    await alice.set_expiry(group, 90 * DAY)
    running.clock.advance(HOUR)
    job = Scope("job", PurgeJob(1, -1, DAY), is_housekeeping=False)
    assert (await clean(running, job))["deleted"]["redacted"] == 1
    assert await alice.numbers(group) == [2]


async def test_a_red_clock_erases_nothing_and_accepting_it_brings_timers_back(
    running: Running, cleaner: Cleaner
) -> None:
    (alice, bob, carol), group = await room(running)
    running.clock.set_wrong(2 * DAY)
    await alice.send(group, b"secret", HOUR)
    for each in (bob, carol):
        await each.read(group, 1)
    config = replace(running.config, cleanup=CleanupConfig(engine="sql", disk_reserve=0))
    running.clock.advance(HOUR)
    report = await asyncio.to_thread(cleaner.try_run, config, running.clock.now(), running.clock.set_by)
    assert "ClockWrongError" in report["error"]
    assert await bob.numbers(group) == [], "it hides all the same"
    running.clock.set_wrong(-2 * DAY)
    report = await asyncio.to_thread(
        cleaner.try_run, config, running.clock.now(), running.clock.set_by, accept_clock=True
    )
    assert report["error"] == ""
    ends = running.clock.now() + HOUR
    assert await running.query("SELECT DISTINCT redact_at FROM timers") == [(ends,)]


async def accept(running: Running, cleaner: Cleaner) -> None:
    config = replace(running.config, cleanup=CleanupConfig(engine="sql", disk_reserve=0))
    done = await asyncio.to_thread(
        cleaner.try_run, config, running.clock.now(), running.clock.set_by, accept_clock=True
    )
    assert done["error"] == ""


async def test_what_is_read_while_a_wrong_clock_calls_it_too_old_has_its_time_afterwards(
    running: Running, cleaner: Cleaner
) -> None:
    (alice, bob, carol), group = await room(running)
    search = StoreSearch()
    await alice.send(group, search.body(1, 600), 90 * DAY)
    running.clock.advance(10 * DAY)
    await running.app[app_keys.CLOCK_WATCH].record()
    secret = search.body(2, 600)
    await alice.send(group, secret, HOUR)
    assert await bob.numbers(group) == [2], "the first one is too old by the right clock"
    running.clock.set_wrong(20 * DAY)
    await bob.read(group, 2)
    assert await bob.numbers(group) == [], "reading shows nothing that this clock hides"
    running.clock.set_wrong(-20 * DAY)
    await carol.read(group, 2)
    await accept(running, cleaner)
    running.clock.advance(HOUR - 1)
    for each in (bob, carol):
        assert [message.body for message in await each.fetch(group)] == [secret], "its time is not over"
    await accept(running, cleaner)
    assert search.numbers_in(Path(running.config.database_path).parent) == {1, 2}, "nor is it erased"
    running.clock.advance(1)
    for each in (bob, carol):
        assert await each.numbers(group) == [], "whoever has read it does not see it for ever"
    await accept(running, cleaner)
    assert search.numbers_in(Path(running.config.database_path).parent) == {1}, "alice reads that"


async def test_what_is_read_while_a_slow_clock_calls_it_young_is_hidden_again_with_the_right_one(
    running: Running, cleaner: Cleaner
) -> None:
    (alice, bob, carol), group = await room(running)
    await alice.send(group, b"old", 90 * DAY)
    running.clock.advance(5 * DAY)
    await alice.send(group, b"young", 90 * DAY)
    running.clock.advance(5 * DAY)
    assert await bob.numbers(group) == [2], "nobody may read the first one for the first time"
    await running.app[app_keys.CLOCK_WATCH].record()
    running.clock.set_wrong(-2 * DAY)
    assert await bob.numbers(group) == [1, 2], "hiding goes on by the clock as it is"
    await bob.read(group, 2)
    assert await bob.numbers(group) == [1, 2], "reading hides nothing at once"
    running.clock.set_wrong(2 * DAY)
    await accept(running, cleaner)
    assert await bob.numbers(group) == [2], "what was too old is so again, and what was not has its time"
    assert await carol.numbers(group) == [2]
    assert await alice.numbers(group) == [1, 2]
    assert await running.query("SELECT sequence_num FROM messages") == [(1,), (2,)], "alice has read both"


async def test_what_a_wrong_clock_hides_does_not_count_as_fetched(running: Running, cleaner: Cleaner) -> None:
    (alice, bob, carol), group = await room(running)
    search = StoreSearch()
    await alice.set_expiry(group, 0)
    await alice.send(group, search.body(1, 600), HOUR)
    await carol.fetch(group)
    running.clock.set_wrong(20 * DAY)
    for each in (alice, bob):
        assert await each.fetch(group) == []
    await running.settle()
    assert await running.query("SELECT watermark FROM members ORDER BY member_id") == [(1,), (0,), (1,)]
    running.clock.set_wrong(-20 * DAY)
    await accept(running, cleaner)
    assert [message.body for message in await bob.fetch(group)] == [search.body(1, 600)], "nobody had shown it to bob"
    await running.settle()
    await accept(running, cleaner)
    assert await bob.fetch(group) == [], "now all have fetched it"
    assert search.numbers_in(Path(running.config.database_path).parent) == set()


@pytest.mark.system
async def test_neither_it_nor_what_follows_moves_to_the_archive(
    config: Config, start_server: StartServer, cleaner: Cleaner
) -> None:
    config = replace(
        config,
        cleanup=CleanupConfig(engine="spark", disk_reserve=0),
        archive=ArchiveConfig(after=HOUR, margin=HOUR),
        retention=RetentionConfig(default_policy=Lifetimes(max_lifetime=90 * DAY)),
    )
    async with start_server(config) as running:
        (alice, bob, carol), group = await room(running)
        for seconds in (0, HOUR, 0):
            await alice.send(group, b"message", seconds)
        running.clock.advance(2 * HOUR)

        async def run() -> int:
            await running.settle()
            done = await asyncio.to_thread(cleaner.run, config, running.clock.now(), running.clock.set_by)
            return int(done["archived"])

        assert await run() == 1
        assert await bob.numbers(group) == [1, 2, 3]
        for each in (bob, carol):
            await each.read(group, 2)
        running.clock.advance(HOUR)
        assert await bob.numbers(group) == [1, 3]
        assert [each.redacted for each in await bob.fetch(group, include_redacted=True)] == [False, True, False]
        assert await run() == 1, "it is gone, and what follows moves"
        assert await bob.numbers(group) == [1, 3]
