"""Joins that no external commit completes: a minute later they are undone, for the one who joined at once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from conclave import app_keys
from conclave.actions import members
from conclave.config.settings import Config
from conclave.server import duties
from conclave.store.resources.members import JOIN_SECONDS
from tests.conftest import Cleanup, Running, StartServer
from tests.support.client import Client, encode, expect
from tests.support.listening import listening
from tests.support.server import PATIENCE


@pytest.fixture
async def without_duty(
    config: Config, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Running]:
    """A server that undoes no join: what is over is over all the same."""
    monkeypatch.setattr(duties, "JOINS_INTERVAL_SECONDS", 3600.0)
    async with start_server(config) as server:
        yield server


async def begun(running: Running, **settings: Any) -> tuple[Client, Client, Client, str]:
    """Alice, bob and zed: the first two in a group, where zed has begun to join."""
    alice, bob, zed = await running.users("alice", "bob", "zed")
    group = await alice.create_group("friends", **settings)
    await bob.join(group)
    await zed.begin_join(group)
    return alice, bob, zed, group


async def names(running: Running) -> list[str]:
    rows = await running.query("SELECT username FROM members JOIN users USING (user_id) ORDER BY member_id")
    return [row[0] for row in rows]


async def undone(running: Running, left: list[str]) -> None:
    """Wait until the duty of the server has left these members."""
    async with asyncio.timeout(PATIENCE):
        while await names(running) != left:
            await asyncio.sleep(0.01)


async def test_a_join_without_an_external_commit_is_undone_and_everybody_learns_of_it(running: Running) -> None:
    alice, _, zed, group = await begun(running)
    removed = ("member_removed", {"group_id": group, "removed_user_id": zed.user_id})
    async with listening(alice) as alices, listening(zed) as zeds:
        running.clock.advance(JOIN_SECONDS + 1)
        assert await alices.next() == removed
        assert await zeds.next() == removed
    assert await names(running) == ["alice", "bob"]
    await expect(zed.fetch(group), 401, 400)
    await zed.join(group)
    assert await names(running) == ["alice", "bob", "zed"]


async def test_the_minute_ends_to_the_second_for_whatever_a_member_may_do(
    without_duty: Running,
) -> None:
    running = without_duty
    alice, _, zed, group = await begun(running)
    await alice.send(group, b"one")
    requests = list[tuple[str, str, dict[str, Any]]]()
    requests += [
        ("GET", f"/groups/{group}/messages", {}),
        ("GET", f"/groups/{group}/group-info", {}),
        ("GET", f"/groups/{group}/retention", {}),
        ("GET", f"/groups/{group}/admins", {}),
        ("POST", f"/groups/{group}/messages", {"mls_message": encode(b"two")}),
        ("POST", f"/groups/{group}/commit", {"group_info": encode(b"mine")}),
        ("POST", f"/groups/{group}/read", {"sequence_num": 1}),
    ]
    running.clock.advance(JOIN_SECONDS)
    for method, path, body in requests:
        await zed.call(method, path, json=body or None)
    assert await zed.numbers(group) == [1, 2]
    running.clock.advance(1)
    requests += [("DELETE", f"/groups/{group}/messages/2", {}), ("POST", f"/groups/{group}/leave", {})]
    for method, path, body in requests:
        await expect(zed.call(method, path, json=body or None), 401, 400)
    await expect(zed.patch(group, alias="mine"), 401, 401)
    assert await names(running) == ["alice", "bob", "zed"], "not undone yet"
    assert await alice.numbers(group) == [1, 2]


async def test_a_join_is_completed_by_a_commit_that_arrives_before_it_is_undone(running: Running) -> None:
    alice, _, zed, group = await begun(running)
    running.clock.advance(JOIN_SECONDS)
    async with listening(alice) as events:
        await zed.post(f"/groups/{group}/external-join", commit_message=encode(b"in"))
        assert await events.next() == ("group_update", {"group_id": group, "update_type": "commit"})
    running.clock.advance(1_000 * JOIN_SECONDS)
    assert await zed.numbers(group) == [1]
    assert await zed.send(group, b"here") == 2
    assert await running.app[app_keys.STORE].write(members.undo_overdue_joins, running.app[app_keys.CONTEXT]) == 0


async def test_one_join_that_is_undone_leaves_those_that_were_completed(running: Running) -> None:
    alice, _, _, group = await begun(running)
    carol, dave = await running.users("carol", "dave")
    running.clock.advance(JOIN_SECONDS)
    await carol.begin_join(group)
    await dave.join(group)
    running.clock.advance(1)
    await undone(running, ["alice", "bob", "carol", "dave"])
    running.clock.advance(JOIN_SECONDS)
    await undone(running, ["alice", "bob", "dave"])
    assert [each["username"] for each in (await alice.get("/groups"))["groups"][0]["members"]] == [
        "alice",
        "bob",
        "dave",
    ]


async def test_an_undone_join_no_longer_holds_back_what_the_rest_has_fetched(
    running: Running, cleanup: Cleanup
) -> None:
    alice, bob, zed, group = await begun(running, expiry=0)
    await alice.send(group, b"secret")
    await bob.fetch(group)
    assert (await cleanup(running))["fetched"] == 0
    assert (await alice.get(f"/groups/{group}/retention"))["held_by"] == [zed.user_id]
    running.clock.advance(JOIN_SECONDS + 1)
    await undone(running, ["alice", "bob"])
    assert await bob.numbers(group) == [1], "as with a leave: what all have fetched goes with the next run"
    assert (await cleanup(running))["fetched"] == 1
    assert await bob.numbers(group) == []


async def test_an_overdue_joiner_can_join_again_before_the_join_is_undone(without_duty: Running) -> None:
    running = without_duty
    alice, _, zed, group = await begun(running)
    await expect(zed.begin_join(group), 409, 301)
    running.clock.advance(JOIN_SECONDS + 1)
    async with listening(alice) as events:
        await zed.join(group)
        assert (await events.next())[0] == "member_removed"
        assert (await events.next())[0] == "group_update"
    assert await zed.numbers(group) == []


async def test_a_join_is_undone_after_a_restart(config: Config, start_server: StartServer) -> None:
    async with start_server(config) as running:
        alice, _, zed, group = await begun(running)
        running.clock.advance(JOIN_SECONDS - 1)
    async with start_server(config) as running:
        alice, zed = [replace_url(each, running) for each in (alice, zed)]
        assert await zed.numbers(group) == []
        running.clock.advance(2)
        await expect(zed.numbers(group), 401, 400)
        await undone(running, ["alice", "bob"])
        assert await alice.numbers(group) == []


def replace_url(client: Client, running: Running) -> Client:
    """The same client at a server that was started again."""
    client.http, client.url = running.http, running.url
    return client


async def test_no_join_is_undone_by_a_clock_in_doubt(running: Running) -> None:
    alice, _, zed, group = await begun(running)
    await running.app[app_keys.CLOCK_WATCH].record()
    running.clock.set_wrong(86_400)
    for _ in range(2):
        assert await running.app[app_keys.STORE].write(members.undo_overdue_joins, running.app[app_keys.CONTEXT]) == 0
        assert await zed.numbers(group) == [], "before the guard has looked, and after it has"
        await running.app[app_keys.CLOCK_WATCH].record()
        assert "clock" in running.app[app_keys.HEALTH].faults
    await zed.post(f"/groups/{group}/external-join")
    assert await names(running) == ["alice", "bob", "zed"]
    assert await alice.numbers(group) == []


async def test_what_a_joiner_became_or_did_ends_with_the_join(running: Running) -> None:
    """An admin's invites are withdrawn, and the group keeps an admin, or goes with its last member."""
    alice, bob, zed, group = await begun(running)
    carol = await running.user("carol")
    await alice.act("promote", group, zed)
    await zed.post(
        f"/groups/{group}/escrow-invite",
        invitee_id=carol.user_id,
        **dict.fromkeys(("commit_message", "welcome_message", "group_info"), encode(b"x")),
    )
    await alice.leave(group)
    running.clock.advance(JOIN_SECONDS + 1)
    await undone(running, ["bob"])
    assert (await carol.get("/invites"))["invites"] == []
    assert [each["username"] for each in (await bob.get(f"/groups/{group}/admins"))["admins"]] == ["bob"]
    await zed.begin_join(group)
    await bob.leave(group)
    running.clock.advance(JOIN_SECONDS + 1)
    await undone(running, [])
    assert await running.query("SELECT count(*) FROM groups") == [(0,)]


async def test_many_joins_are_undone_in_several_transactions(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conclave.actions.members.MAX_UNDONE_JOINS", 2)
    _, _, _, group = await begun(running)
    for user in await running.users(*(f"late_{number}" for number in range(5))):
        await user.begin_join(group)
    running.clock.advance(JOIN_SECONDS + 1)
    await undone(running, ["alice", "bob"])
