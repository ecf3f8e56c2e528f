"""What goes when: each scenario over HTTP, with a cleanup run by each engine."""

import asyncio
import sqlite3
from collections import Counter
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from conclave import app_keys
from conclave.actions.authorisation import require_group
from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from conclave.store import bodies
from conclave.store.resources.state import PolicyFrozenError
from spark.environment import RunEnvironment
from spark.rehearsal import rehearse
from tests.conftest import Cleanup, Running, StartServer
from tests.support.cleaner import Cleaner
from tests.support.client import Client, RefusedError, expect
from tests.support.listening import listening

HOUR, DAY = 3600, 86_400


async def stored(server: Running) -> list[int]:
    """The sequence numbers that are stored, whether they are served or not."""
    return [row[0] for row in await server.query("SELECT sequence_num FROM messages ORDER BY sequence_num")]


async def test_what_expired_stays_hidden_when_the_policy_is_lengthened(running: Running, cleanup: Cleanup) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g", expiry=HOUR)
    await bob.join(group)
    await alice.send(group)
    running.clock.advance(2 * HOUR)
    await alice.send(group)
    assert await bob.numbers(group) == [2]
    await alice.set_expiry(group, -1)
    assert await bob.numbers(group) == [2]
    assert (await cleanup(running))["expired"] == 1
    assert await stored(running) == [2]
    assert await bob.numbers(group) == [2]


async def test_history_fetched_before_a_member_came_is_kept_until_that_member_fetches(
    running: Running, cleanup: Cleanup
) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("g")
    await bob.join(group)
    for _ in range(10):
        await alice.send(group)
    await alice.numbers(group)
    await bob.numbers(group)
    await carol.join(group)
    await alice.set_expiry(group, 0)
    assert (await cleanup(running))["fetched"] == 0
    assert await carol.numbers(group) == list(range(1, 11))
    assert (await cleanup(running))["fetched"] == 10
    assert await stored(running) == []
    assert await carol.numbers(group) == []


async def test_who_leaves_stops_counting_and_coming_back_revives_nothing(running: Running, cleanup: Cleanup) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g", expiry=0)
    await bob.join(group)
    for _ in range(10):
        await alice.send(group)
    await bob.fetch(group, 0, 3)
    assert (await cleanup(running))["fetched"] == 3
    await bob.leave(group)
    await bob.join(group)
    assert (await cleanup(running))["fetched"] == 7
    assert await bob.numbers(group) == []


async def test_a_joiner_does_not_hold_back_what_all_had_fetched(running: Running, cleanup: Cleanup) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("g", expiry=0)
    await bob.join(group)
    for _ in range(10):
        await alice.send(group)
    await bob.numbers(group)
    await carol.join(group)
    await alice.send(group)
    assert await carol.numbers(group) == list(range(1, 12)), "until the next run the joiner may still get them"
    assert (await cleanup(running))["fetched"] == 10
    assert await carol.numbers(group) == [11]


async def test_a_sender_has_not_seen_what_others_sent(running: Running, cleanup: Cleanup) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g", expiry=0)
    await bob.join(group)
    await alice.send(group)
    await bob.send(group)
    await alice.numbers(group)
    assert (await cleanup(running))["fetched"] == 0
    assert await bob.numbers(group) == [1, 2]
    assert (await cleanup(running))["fetched"] == 2


async def test_a_member_who_never_fetches_holds_the_messages_back(running: Running, cleanup: Cleanup) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g", expiry=0)
    await bob.join(group)
    await alice.send(group)
    running.clock.advance(400 * DAY)
    assert (await cleanup(running))["fetched"] == 0
    await bob.login("bob")
    assert await bob.numbers(group) == [1]


async def test_leaving_delete_after_fetch_keeps_hidden_what_all_had_fetched(running: Running, cleanup: Cleanup) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g", expiry=0)
    await bob.join(group)
    await alice.send(group)
    await bob.numbers(group)
    await alice.send(group)
    await alice.set_expiry(group, -1)
    assert await bob.numbers(group) == [2]
    assert (await cleanup(running))["fetched"] == 1
    assert await stored(running) == [2]


async def test_server_wide_delete_after_fetch_covers_groups_that_inherit(
    config: Config, start_server: StartServer, cleanup: Cleanup
) -> None:
    async with start_server(replace(config, message_retention=0)) as server:
        alice, bob = await server.users("alice", "bob")
        group = await alice.create_group("g")
        await bob.join(group)
        await alice.send(group)
        assert (await cleanup(server))["fetched"] == 0
        assert await bob.numbers(group) == [1]
        assert (await cleanup(server))["fetched"] == 1
        assert await bob.numbers(group) == []


async def test_a_longer_retention_after_a_stop_revives_only_what_had_not_expired_at_the_stop(
    config: Config, start_server: StartServer, cleanup: Cleanup
) -> None:
    async with start_server(replace(config, message_retention=7 * DAY)) as server:
        alice = await server.user("alice")
        group = await alice.create_group("g")
        await alice.send(group, b"too old at the stop")
        server.clock.advance(DAY)
        await alice.send(group, b"younger than 7 days at the stop")
        server.clock.advance(6 * DAY + 1)
    server.clock.advance(10 * DAY)
    async with start_server(replace(config, message_retention=30 * DAY)) as server:
        alice = type(alice)(server.http, server.url)
        await alice.login("alice")
        assert await alice.numbers(group) == [2]
        assert (await cleanup(server))["expired"] == 1
        assert await alice.numbers(group) == [2]


async def test_a_shorter_retention_takes_effect_at_once(
    config: Config, start_server: StartServer, cleanup: Cleanup
) -> None:
    async with start_server(config) as server:
        alice = await server.user("alice")
        group = await alice.create_group("g", expiry=10 * DAY)
        await alice.send(group)
        server.clock.advance(2 * DAY)
        await alice.send(group)
    async with start_server(replace(config, message_retention=DAY), accepts_change=True) as server:
        alice = type(alice)(server.http, server.url)
        await alice.login("alice")
        assert await alice.numbers(group) == [2]
        assert (await alice.get(f"/groups/{group}/retention"))["group_expiry_seconds"] == 10 * DAY
        assert (await cleanup(server))["expired"] == 1


async def test_numbers_go_on_after_a_group_was_emptied(running: Running, cleanup: Cleanup) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g", expiry=HOUR)
    assert [await alice.send(group) for _ in range(3)] == [1, 2, 3]
    running.clock.advance(HOUR + 1)
    assert (await cleanup(running))["expired"] == 3
    assert await stored(running) == []
    assert await alice.send(group) == 4
    assert await alice.numbers(group) == [4]


async def test_a_message_expires_to_the_second(running: Running, cleanup: Cleanup) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g", expiry=HOUR)
    await alice.send(group)
    running.clock.advance(HOUR)
    assert await alice.numbers(group) == [1]
    assert (await cleanup(running))["expired"] == 0
    running.clock.advance(1)
    assert await alice.numbers(group) == []
    assert (await cleanup(running))["expired"] == 1


async def test_a_second_run_right_after_deletes_nothing(running: Running, cleanup: Cleanup) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g", expiry=HOUR)
    await alice.send(group)
    running.clock.advance(HOUR + 1)
    assert sum((await cleanup(running)).values()) == 1
    assert sum((await cleanup(running)).values()) == 0


async def test_a_deleted_group_is_hidden_at_once_and_erased_by_the_next_run(running: Running, cleanup: Cleanup) -> None:
    alice, bob = await running.users("alice", "bob")
    group, other = [await alice.create_group(name) for name in ("g", "other")]
    await bob.join(group)
    await alice.send(group)
    await alice.send(other)
    await alice.post(f"/groups/{group}/delete")
    with pytest.raises(RefusedError) as refused:
        await bob.fetch(group)
    assert refused.value.code == 400
    assert await alice.create_group("g"), "its name is free again"
    assert (await cleanup(running))["deleted_group"] == 1
    assert await running.query("SELECT * FROM tombstones") == []
    assert await alice.numbers(other) == [1]


async def test_sessions_go_after_their_expiry_and_live_ones_stay(running: Running, cleanup: Cleanup) -> None:
    alice, bob = await running.users("alice", "bob")
    running.clock.advance(20 * DAY)
    await bob.login("bob")
    running.clock.advance(10 * DAY)
    with pytest.raises(RefusedError) as refused:
        await alice.get("/me")
    assert refused.value.code == 202, "dead at once at read time"
    assert (await cleanup(running))["sessions"] == 0, "kept for as long as its last use may not be written yet"
    running.clock.advance(61)
    assert (await cleanup(running))["sessions"] == 2
    assert (await bob.get("/me"))["username"] == "bob"


async def test_old_invites_go_with_what_they_carry(running: Running, cleanup: Cleanup) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("g")
    await add_invite(running, group, alice, bob)
    running.clock.advance(7 * DAY)
    await add_invite(running, group, alice, carol)
    assert (await cleanup(running))["invites"] == 0
    running.clock.advance(1)
    await alice.login("alice")
    told = {"group_id": group, "declined_user_id": bob.user_id}
    async with listening(alice) as events:
        assert (await cleanup(running))["invites"] == 1
        assert await events.next() == ("invite_declined", told)
        await asyncio.sleep(1.5)
        assert events.waiting() == [], "the inviter is told exactly once"
    assert len(await running.query("SELECT * FROM invites")) == 1


async def test_a_wrong_clock_erases_nothing_and_moves_no_mark_until_it_is_accepted(
    running: Running, cleanup: Cleanup, cleaner: Cleaner, engine: str
) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g", expiry=HOUR)
    fetched = await alice.create_group("fetched", expiry=0)
    await bob.join(fetched)
    for each in (group, fetched):
        await alice.send(each)
    await bob.numbers(fetched)
    marks = "SELECT group_key, last_seq, floor_seq, gone_below, expired_before FROM groups"
    before = await running.query(marks)
    running.clock.set_wrong(365 * DAY)
    await alice.login("alice")
    await bob.login("bob")
    with pytest.raises(AssertionError, match="set forward by 31536000 seconds"):
        await cleanup(running)
    assert await bob.numbers(fetched) == [1]
    for policy in (2 * HOUR, -1):
        await expect(alice.set_expiry(group, policy), 503, 0)
        await expect(alice.set_expiry(fetched, policy), 503, 0)
    assert await running.query(marks) == before
    assert await stored(running) == [1, 1]
    running.clock.set_wrong(-365 * DAY)
    with pytest.raises(AssertionError, match="set forward"):
        await cleanup(running)
    await alice.set_expiry(group, HOUR)
    assert await alice.numbers(group) == [1], "nothing was hidden for good"
    running.clock.advance(HOUR + 1)
    now, set_by = running.clock.now(), running.clock.set_by
    config = replace(running.config, cleanup=CleanupConfig(engine=engine))
    report = await asyncio.to_thread(cleaner.try_run, config, now, set_by, accept_clock=True)
    assert (report["error"], report["deleted"]["expired"]) == ("", 1)
    assert sum((await cleanup(running)).values()) == 0


async def test_a_clock_behind_what_is_stored_erases_nothing(
    config: Config, start_server: StartServer, clock: FakeClock, cleanup: Cleanup
) -> None:
    async with start_server(config) as server:
        alice = await server.user("alice")
        group = await alice.create_group("g", expiry=HOUR)
        await alice.send(group)
    clock.advance(2 * DAY)
    async with start_server(config) as server:
        alice = type(alice)(server.http, server.url, alice.token)
        await alice.send(group)
    clock.set_wrong(-DAY)
    clock.boot_id = "after a restart of the machine"
    async with start_server(config) as server:
        assert server.app[app_keys.HEALTH].faults["clock"].startswith("the wall clock is 86400 seconds behind")
        with pytest.raises(AssertionError, match="behind what is already stored"):
            await cleanup(server)
        assert await stored(server) == [1, 2]


async def test_a_policy_does_not_change_under_a_wrong_clock_and_its_end_is_not_forgotten(
    config: Config, start_server: StartServer, clock: FakeClock, cleaner: Cleaner
) -> None:
    """A server that ran under a clock which was ahead leaves times that have yet to come."""
    sql = replace(config, cleanup=CleanupConfig(engine="sql"), message_retention=30 * DAY)
    async with start_server(sql) as server:
        alice = await server.user("alice")
        group = await alice.create_group("g")
        await alice.send(group)
    clock.set_wrong(365 * DAY)
    clock.boot_id = "restarted with the clock ahead: that cannot be seen"
    async with start_server(sql):
        pass
    clock.set_wrong(-365 * DAY)
    clock.boot_id = "restarted with the clock mended"
    with pytest.raises(PolicyFrozenError, match="message_retention cannot change"):
        async with start_server(replace(sql, message_retention=60 * DAY)):
            pass
    async with start_server(sql) as server:
        assert "clock" in server.app[app_keys.HEALTH].faults
        now, set_by = clock.now(), clock.set_by
        report = await asyncio.to_thread(cleaner.try_run, sql, now, set_by, accept_clock=True)
        assert report["deleted"]["expired"] == 0, report
    async with start_server(replace(sql, message_retention=60 * DAY)) as server:
        alice = type(alice)(server.http, server.url, alice.token)
        await alice.send(group)
        assert await alice.numbers(group) == [1, 2]
        assert await server.query("SELECT expired_before FROM groups") == [(clock.now() - 30 * DAY,)]


async def test_a_dry_run_counts_what_a_run_then_deletes_and_touches_nothing(running: Running, cleaner: Cleaner) -> None:
    alice, bob = await running.users("alice", "bob")
    groups_of = {expiry: await alice.create_group(f"g{abs(expiry)}", expiry=expiry) for expiry in (-1, 0, HOUR)}
    deleted = await alice.create_group("deleted")
    await bob.join(groups_of[0])
    for group in (*groups_of.values(), deleted):
        for _ in range(3):
            await alice.send(group)
    await bob.fetch(groups_of[0], 0, 2)
    await alice.post(f"/groups/{deleted}/delete")
    running.clock.advance(31 * DAY)
    await running.settle()
    config = replace(running.config, cleanup=CleanupConfig(engine="sql"))
    before = await running.query("SELECT * FROM messages"), await running.query("SELECT * FROM groups")
    planned = rehearse(RunEnvironment(config, running.clock))
    assert (await running.query("SELECT * FROM messages"), await running.query("SELECT * FROM groups")) == before
    assert await running.query("SELECT * FROM cleanup_runs") == []
    report = await asyncio.to_thread(cleaner.run, config, running.clock.now())
    assert report["deleted"] == dict(planned.counts)
    assert +Counter(report["deleted"]) == {"expired": 3, "fetched": 2, "deleted_group": 3, "sessions": 2}


async def add_invite(server: Running, group: str, inviter: Client, invitee: Client) -> None:
    """Store an invite as an admin's escrow-invite does."""

    def add(connection: sqlite3.Connection) -> None:
        group_key = require_group(connection, UUID(group).bytes).group_key
        carried = [bodies.put(connection, text) for text in (b"commit", b"welcome", b"group info")]
        connection.execute(
            "INSERT INTO invites (invite_id, group_key, invitee_id, inviter_id, created_at, commit_body, welcome_body,"
            " group_info_body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                uuid4().bytes,
                group_key,
                UUID(invitee.user_id).bytes,
                UUID(inviter.user_id).bytes,
                server.clock.now(),
                *carried,
            ),
        )

    await server.app[app_keys.STORE].write(add)
