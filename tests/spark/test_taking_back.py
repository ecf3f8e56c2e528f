"""What was taken back is erased by the next run of any job, by either engine; what was not, stays."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from conclave.actions import holds
from conclave.actions.command_runner import CommandRunner
from conclave.config.cleanup import CleanupConfig
from conclave.retention.jobs import ALL, PurgeJob, Scope
from conclave.store.engine import sqlite
from conclave.store.resources import receipts
from tests.conftest import Running
from tests.support.cleaner import Cleaner
from tests.support.client import Client
from tests.support.forensics import StoreSearch
from tests.support.server import until
from tests.support.world import outcome

HOUR, DAY = 3600, 86_400

Clean = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
def clean(engine: str, cleaner: Cleaner) -> Clean:
    async def run(server: Running, scope: Scope = ALL) -> dict[str, Any]:
        await server.settle()
        config = replace(server.config, cleanup=CleanupConfig(engine=engine, disk_reserve=0))
        done: dict[str, Any] = await asyncio.to_thread(
            cleaner.run, config, server.clock.now(), server.clock.set_by, scope=scope
        )
        return done

    return run


async def filled(running: Running, search: StoreSearch) -> tuple[Client, Client, str]:
    """Alice and bob, and a group in which bob has sent 1 to 6."""
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    for number in range(1, 7):
        await bob.send(group, search.body(number, 5_000))
    return alice, bob, group


def left(running: Running, search: StoreSearch) -> set[int]:
    return search.numbers_in(Path(running.config.database).parent)


async def test_it_is_hidden_at_once_and_in_no_file_after_the_next_run(running: Running, clean: Clean) -> None:
    search = StoreSearch()
    alice, bob, group = await filled(running, search)
    for number in (2, 5):
        await bob.take_back(group, number)
    assert await alice.numbers(group) == [1, 3, 4, 6]
    assert left(running, search) == {1, 2, 3, 4, 5, 6}
    assert (await clean(running))["deleted"]["taken_back"] == 2
    assert left(running, search) == {1, 3, 4, 6}
    assert await alice.numbers(group) == [1, 3, 4, 6]
    assert [each.sequence_num for each in await alice.fetch(group, include_redacted=True)] == [1, 3, 4, 6]
    assert (await clean(running))["deleted"]["taken_back"] == 0
    assert await running.query("SELECT sequence_num, erased FROM taken_back") == [(2, 1), (5, 1)]
    assert await running.query("SELECT DISTINCT taken_back_count FROM groups") == [(0,)]
    for client, status in ((bob, None), (alice, (404, 300))):
        assert await outcome(client.take_back(group, 2)) == status, "who has done so may do so again"
    for client in (alice, bob):
        assert (await client.get(f"/groups/{group}/retention"))["taken_back"] == [2, 5], "for who was away for long"
    with closing(sqlite.connect(running.config.database, readonly=True)) as connection:
        [receipt] = receipts.of_group(connection, UUID(group).bytes, 9)
        assert (receipt.rule, receipt.messages, receipt.last_seq) == ("taken_back", 2, 5)


async def test_a_least_lifetime_and_holds_keep_the_bytes_and_hide(running: Running, clean: Clean) -> None:
    search = StoreSearch()
    alice, bob, group = await filled(running, search)
    await alice.patch(group, min_lifetime_seconds=DAY, update_min_lifetime=True)
    await bob.take_back(group, 2)
    assert (await clean(running))["deleted"]["taken_back"] == 0
    assert left(running, search) == {1, 2, 3, 4, 5, 6}
    outside = CommandRunner(running.config, running.clock)
    of_group = outside.read(holds.find_group, group)
    of_user = outside.read(holds.find_user, "bob")
    added = [
        outside.write(holds.add, outside.context(), "operator root", covered, "case").hold_id
        for covered in (of_group, of_user)
    ]
    running.clock.advance(DAY)
    for hold_id in added:
        report = await clean(running)
        assert (report["deleted"]["taken_back"], report["held"]) == (0, 1)
        assert await alice.numbers(group) == [1, 3, 4, 5, 6]
        assert left(running, search) == {1, 2, 3, 4, 5, 6}
        outside.write(holds.release, outside.context(), "operator root", hold_id)
    assert (await clean(running))["deleted"]["taken_back"] == 1
    assert left(running, search) == {1, 3, 4, 5, 6}


async def test_it_belongs_to_every_job(running: Running, clean: Clean) -> None:
    alice, bob, group = await filled(running, StoreSearch())
    await alice.set_expiry(group, 90 * DAY)
    await bob.take_back(group, 3)
    job = Scope("job", PurgeJob(1, -1, DAY), is_housekeeping=False)
    assert (await clean(running, job))["deleted"]["taken_back"] == 1
    assert await alice.numbers(group) == [1, 2, 4, 5, 6]


async def test_in_delete_after_fetch_it_goes_before_all_have_fetched_it(running: Running, clean: Clean) -> None:
    """And what others have still to fetch stays."""
    search = StoreSearch()
    alice, bob, group = await filled(running, search)
    await alice.set_expiry(group, 0)
    await bob.fetch(group)
    await bob.take_back(group, 6)
    deleted = (await clean(running))["deleted"]
    assert (deleted["taken_back"], deleted["fetched"]) == (1, 0)
    assert left(running, search) == {1, 2, 3, 4, 5}
    assert await alice.numbers(group) == [1, 2, 3, 4, 5]
    await alice.fetch(group, 5)
    await bob.fetch(group, 6)
    assert (await clean(running))["deleted"]["fetched"] == 5
    assert left(running, search) == set()


async def test_it_goes_with_a_deleted_group_and_a_deleted_account(running: Running, clean: Clean) -> None:
    search = StoreSearch()
    alice, bob, group = await filled(running, search)
    other = await alice.create_group("others")
    await bob.join(other)
    await bob.send(other, search.body(7, 600))
    for each, number in ((group, 2), (other, 1)):
        await bob.take_back(each, number)
    await alice.post(f"/groups/{other}/delete")
    await bob.post("/delete-account", password="correct horse")
    deleted = (await clean(running))["deleted"]
    assert (deleted["deleted_group"], deleted["taken_back"], deleted["deleted_account"]) == (1, 1, 5)
    assert left(running, search) == set()
    assert await running.query("SELECT count(*), min(erased) FROM taken_back") == [(2, 1)]


async def test_it_is_known_for_as_long_as_receipts_are(running: Running, clean: Clean) -> None:
    _, bob, group = await filled(running, StoreSearch())
    await bob.take_back(group, 2)
    await clean(running)
    running.clock.advance(running.config.retention.keep_receipts)
    await bob.login("bob")
    await bob.send(group, b"late")
    await bob.take_back(group, 7)
    await clean(running)
    assert (await bob.get(f"/groups/{group}/retention"))["taken_back"] == [2, 7]
    running.clock.advance(1)

    async def is_told() -> bool:
        return await running.query("SELECT count(*) FROM taken_back WHERE told_to IS NULL") == [(2,)]

    await until(is_told)  # that a message was taken back is kept for as long as its readers have not been told
    await clean(running)
    assert (await bob.get(f"/groups/{group}/retention"))["taken_back"] == [7]


async def test_a_self_destructing_one_takes_its_timers_along(running: Running, clean: Clean) -> None:
    alice, bob, group = await filled(running, StoreSearch())
    number = await bob.send(group, b"secret", HOUR)
    await alice.read(group, number)
    await bob.take_back(group, number)
    assert (await clean(running))["deleted"]["taken_back"] == 1
    await clean(running)
    assert await running.query("SELECT count(*) FROM timers") == [(0,)]
    assert await running.query("SELECT self_destructs FROM groups") == [(0,)]


async def test_a_red_clock_hides_it_and_erases_nothing(running: Running, cleaner: Cleaner) -> None:
    search = StoreSearch()
    alice, bob, group = await filled(running, search)
    await running.settle()
    running.clock.set_wrong(2 * DAY)
    await bob.take_back(group, 2)
    assert await alice.numbers(group) == [1, 3, 4, 5, 6]
    config = replace(running.config, cleanup=CleanupConfig(engine="sql", disk_reserve=0))
    report = await asyncio.to_thread(cleaner.try_run, config, running.clock.now(), running.clock.set_by)
    assert "ClockWrongError" in report["error"]
    assert left(running, search) == {1, 2, 3, 4, 5, 6}
    running.clock.set_wrong(-2 * DAY)
    accepted = await asyncio.to_thread(
        cleaner.try_run, config, running.clock.now(), running.clock.set_by, accept_clock=True
    )
    assert accepted["error"] == ""
    assert left(running, search) == {1, 3, 4, 5, 6}
