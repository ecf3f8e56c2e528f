"""Members over HTTP: roles, removals, bans, joining from outside."""

from typing import Any
from uuid import UUID

import pytest

from conclave.wire.conclave_pb2 import ListBannedUsersResponse
from tests.conftest import Cleanup, Running
from tests.support.alone import once
from tests.support.client import PASSWORD, Client, encode, expect
from tests.support.listening import listening

NOWHERE = "00000000-0000-4000-8000-000000000000"
COMMIT = {"commit_message": encode(b"commit"), "group_info": encode(b"new info")}


async def friends(running: Running, *usernames: str) -> tuple[str, list[Client]]:
    """A public group of users, of whom the first is its admin."""
    users = await running.users(*usernames)
    group = await users[0].create_group("friends")
    for user in users[1:]:
        await user.join(group)
    return group, users


async def banned(admin: Client, group: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await admin.get(f"/groups/{group}/banned"))["users"]
    return found


async def go(how: str, group: str, user: Client, **more: Any) -> None:
    """Have an admin go of their own accord, in one of the ways."""
    match how:
        case "leave":
            await user.post(f"/groups/{group}/leave", **more)
        case "delete-account":
            await user.post("/delete-account", password=PASSWORD)
        case _:
            await user.act(how, group, user, **more)


WAYS = ["leave", "remove", "ban", "delete-account"]


@pytest.mark.parametrize("how", WAYS)
async def test_the_longest_standing_member_follows_the_last_admin(running: Running, how: str) -> None:
    """By membership, whenever the account was made: who left and came back is the newest."""
    group, (alice, bob, carol, dave) = await friends(running, "alice", "bob", "carol", "dave")
    await bob.leave(group)
    await bob.join(group)
    await go(how, group, alice)
    assert await bob.roles(group) == {"carol": "admin", "dave": "member", "bob": "member"}
    await carol.patch(group, alias="hers now")
    await dave.send(group)


@pytest.mark.parametrize("how", WAYS)
async def test_nobody_follows_while_an_admin_is_left(running: Running, how: str) -> None:
    group, (alice, bob, carol) = await friends(running, "alice", "bob", "carol")
    await alice.act("promote", group, carol)
    await go(how, group, alice)
    assert await bob.roles(group) == {"bob": "member", "carol": "admin"}


def disable(running: Running, username: str) -> None:
    once(running.config.database, "UPDATE users SET disabled = 1 WHERE username = ?", username)


@pytest.mark.parametrize("how", WAYS)
async def test_whose_account_is_disabled_neither_follows_nor_keeps_others_from_it(running: Running, how: str) -> None:
    group, (alice, _, carol, dave) = await friends(running, "alice", "bob", "carol", "dave")
    await alice.act("promote", group, carol)
    disable(running, "bob")
    disable(running, "carol")
    await go(how, group, alice)
    assert await dave.roles(group) == {"bob": "member", "carol": "admin", "dave": "admin"}


@pytest.mark.parametrize("how", ["leave", "delete-account"])
async def test_nobody_follows_a_disabled_admin_when_an_ordinary_member_goes(running: Running, how: str) -> None:
    group, (_, bob, carol) = await friends(running, "alice", "bob", "carol")
    disable(running, "alice")
    await go(how, group, carol)
    assert await bob.roles(group) == {"alice": "admin", "bob": "member"}


async def test_if_all_others_are_disabled_the_group_still_has_an_admin(running: Running) -> None:
    group, (alice, *_) = await friends(running, "alice", "bob", "carol")
    disable(running, "bob")
    disable(running, "carol")
    await alice.leave(group)
    roles = "SELECT username, role FROM members JOIN users USING (user_id) ORDER BY member_id"
    assert await running.query(roles) == [("bob", "admin"), ("carol", "member")]


async def test_the_last_admin_who_can_act_cannot_step_back(running: Running) -> None:
    group, (alice, bob) = await friends(running, "alice", "bob")
    await alice.act("promote", group, bob)
    disable(running, "bob")
    await expect(alice.act("demote", group, alice), 400, 100)
    await alice.act("demote", group, bob)
    assert await alice.roles(group) == {"alice": "admin", "bob": "member"}


@pytest.mark.parametrize("how", WAYS)
async def test_a_group_goes_with_its_sole_member(running: Running, how: str) -> None:
    group, (alice, bob) = await friends(running, "alice", "bob")
    await bob.leave(group)
    await alice.act("ban", group, bob)
    await go(how, group, alice)
    await expect(bob.join(group), 404, 300)
    assert await bob.create_group("friends") != group, "the name is free"
    for table in ("members", "bans", "invites", "welcomes"):
        assert len(await running.query(f"SELECT 1 FROM {table} WHERE group_key = 1")) == 0


@pytest.mark.parametrize("how", ["remove", "ban"])
async def test_an_admin_removed_by_another_leaves_them_admin(running: Running, how: str) -> None:
    group, (alice, _, carol) = await friends(running, "alice", "bob", "carol")
    await alice.act("promote", group, carol)
    await carol.act(how, group, alice)
    assert await carol.roles(group) == {"bob": "member", "carol": "admin"}
    await expect(alice.patch(group, alias="x"), 401, 401)


async def test_admins_are_made_and_unmade_by_admins(running: Running) -> None:
    group, (alice, bob, carol) = await friends(running, "alice", "bob", "carol")
    [dave] = await running.users("dave")
    path = f"/groups/{group}/admins"
    await alice.act("promote", group, bob)
    assert await carol.roles(group) == {"alice": "admin", "bob": "admin", "carol": "member"}
    assert [each["username"] for each in (await carol.get(path))["admins"]] == ["alice", "bob"]
    await expect(dave.get(path), 401, 400)
    await expect(alice.act("promote", group, bob), 409, 301)
    await expect(alice.act("promote", group, dave), 400, 100)
    await expect(alice.post(f"/groups/{group}/promote", user_id=NOWHERE), 404, 300)
    await bob.act("demote", group, alice)
    for action in ("promote", "demote", "remove", "ban", "unban"):
        await expect(alice.act(action, group, carol), 401, 401)
    await expect(bob.act("demote", group, alice), 400, 100)
    await expect(bob.act("demote", group, dave), 400, 100)
    await expect(bob.post(f"/groups/{group}/demote", user_id=NOWHERE), 404, 300)
    await expect(bob.act("demote", group, bob), 400, 100)
    assert await carol.roles(group) == {"alice": "member", "bob": "admin", "carol": "member"}


async def test_an_admin_can_step_back_while_another_is_there(running: Running) -> None:
    group, (alice, bob) = await friends(running, "alice", "bob")
    await alice.act("promote", group, bob)
    await alice.act("demote", group, alice)
    assert await bob.roles(group) == {"alice": "member", "bob": "admin"}


@pytest.mark.parametrize("action", ["remove", "ban"])
async def test_a_removal_brings_its_commit_by_the_admin(running: Running, action: str) -> None:
    group, (alice, bob, carol) = await friends(running, "alice", "bob", "carol")
    await alice.send(group)
    await alice.act(action, group, bob, **COMMIT)
    assert [(each.sender_id, each.body) for each in await carol.fetch(group, 1)] == [(alice.user_id, b"commit")]
    assert await carol.group_info(group) == b"new info"
    assert await carol.roles(group) == {"alice": "admin", "carol": "member"}
    for request in (bob.fetch(group), bob.send(group), bob.leave(group), bob.group_info(group)):
        await expect(request, 401, 400)
    assert await bob.get("/groups") == {"groups": [], "more": False}


async def test_a_removal_that_is_refused_stores_no_commit(running: Running) -> None:
    group, (alice, bob) = await friends(running, "alice", "bob")
    [carol] = await running.users("carol")
    await expect(alice.act("remove", group, carol, **COMMIT), 400, 100)
    for action in ("remove", "ban"):
        await expect(alice.post(f"/groups/{group}/{action}", user_id=NOWHERE, **COMMIT), 404, 300)
        await expect(bob.act(action, group, alice, **COMMIT), 401, 401)
        await expect(alice.post(f"/groups/{group}/{action}", **COMMIT), 400, 100)
        await expect(alice.post(f"/groups/{group}/{action}", user_id="bob", **COMMIT), 400, 101)
    assert await alice.fetch(group) == []
    assert await alice.group_info(group) == b"group info"


async def test_who_was_removed_may_come_back_as_anybody(running: Running) -> None:
    group, (alice, bob) = await friends(running, "alice", "bob")
    await alice.act("promote", group, bob)
    await alice.act("remove", group, bob)
    await bob.join(group)
    assert await bob.roles(group) == {"alice": "admin", "bob": "member"}


async def test_who_is_banned_can_neither_join_nor_be_invited(running: Running) -> None:
    group, (alice, bob) = await friends(running, "alice", "bob")
    await bob.upload(b"\0\1\0\5")
    running.clock.advance(7)
    await alice.act("ban", group, bob)
    assert await banned(alice, group) == [
        {
            "user_id": bob.user_id,
            "username": "bob",
            "alias": "",
            "banned_at": running.clock.now(),
            "banned_by": alice.user_id,
        }
    ]
    await expect(bob.join(group), 403, 403)
    await expect(alice.invite(group, bob), 403, 403)
    await expect(alice.post(f"/groups/{group}/invite", user_ids=[bob.user_id]), 403, 403)
    await expect(bob.get(f"/groups/{group}/banned"), 401, 401)
    await alice.act("unban", group, bob)
    assert await banned(alice, group) == []
    await expect(alice.act("unban", group, bob), 400, 100)
    await expect(alice.post(f"/groups/{group}/unban", user_id=NOWHERE), 404, 300)
    await bob.join(group)


async def test_a_ban_is_of_one_group_only(running: Running) -> None:
    group, (alice, bob) = await friends(running, "alice", "bob")
    other = await alice.create_group("others")
    await alice.act("ban", group, bob)
    await bob.join(other)
    assert await banned(alice, other) == []


async def test_a_ban_stays_as_it_was_made(running: Running) -> None:
    group, (alice, bob, carol) = await friends(running, "alice", "bob", "carol")
    await alice.act("promote", group, bob)
    began = running.clock.now()
    await alice.act("ban", group, carol)
    running.clock.advance(60)
    await bob.act("ban", group, carol)
    [ban] = await banned(bob, group)
    assert (ban["banned_at"], ban["banned_by"]) == (began, alice.user_id)


async def test_a_ban_reaches_who_was_never_there_and_who_is_invited(running: Running) -> None:
    group, (alice, _) = await friends(running, "alice", "bob")
    carol, dave = await running.users("carol", "dave")
    invite = await alice.invite(group, dave)
    for stranger in (carol, dave):
        await alice.act("ban", group, stranger)
        await expect(stranger.join(group), 403, 403)
    await expect(dave.accept(invite), 404, 300)
    assert [each["username"] for each in await banned(alice, group)] == ["carol", "dave"]
    assert await alice.roles(group) == {"alice": "admin", "bob": "member"}
    await alice.act("unban", group, dave)
    await expect(dave.accept(invite), 404, 300)


@pytest.mark.parametrize("format", ["json", "protobuf"])
async def test_a_ban_outlives_the_account_of_the_admin(running: Running, format: str) -> None:  # noqa: A002
    group, (alice, bob, carol) = await friends(running, "alice", "bob", "carol")
    await alice.act("ban", group, carol)
    await alice.post("/delete-account", password=PASSWORD)
    if format == "json":
        [ban] = await banned(bob, group)
        assert (ban["user_id"], ban["banned_by"]) == (carol.user_id, "")
    else:
        headers = {"Authorization": f"Bearer {bob.token}", "Accept": "application/x-protobuf"}
        async with running.http.get(f"{running.url}/api/v1/groups/{group}/banned", headers=headers) as response:
            [user] = ListBannedUsersResponse.FromString(await response.read()).users
        assert (user.user_id, user.banned_by) == (UUID(carol.user_id).bytes, b"")
    await expect(carol.join(group), 403, 403)
    await bob.act("unban", group, carol)
    await carol.join(group)


async def test_the_ban_of_a_deleted_account_is_gone(running: Running) -> None:
    group, (alice, bob) = await friends(running, "alice", "bob")
    await alice.act("ban", group, bob)
    await bob.post("/delete-account", password=PASSWORD)
    assert await banned(alice, group) == []
    again = await running.user("bob")
    await again.join(group)


async def test_an_admin_who_bans_himself_is_banned(running: Running) -> None:
    group, (alice, bob) = await friends(running, "alice", "bob")
    await alice.act("ban", group, alice)
    await expect(alice.join(group), 403, 403)
    [ban] = await banned(bob, group)
    assert ban["user_id"] == ban["banned_by"] == alice.user_id


async def test_who_joined_is_new_once_and_has_begun_anew_after_that(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    path = f"/groups/{group}/external-join"
    commit = ("group_update", {"group_id": group, "update_type": "commit"})
    reset = ("identity_reset", {"group_id": group, "user_id": bob.user_id})
    await bob.begin_join(group)
    async with listening(alice) as events:
        await bob.post(path, commit_message=encode(b"one"), mls_group_id="0aFF")
        await bob.post(path, commit_message=encode(b"two"), mls_group_id="ff")
        await bob.leave(group)
        await bob.begin_join(group)
        await bob.post(path, commit_message=encode(b"three"))
        await bob.leave(group)
        await alice.bring(bob, group, b"four")
        await bob.post(path, commit_message=encode(b"five"))
        heard = [await events.next() for _ in range(7)]
    left = ("member_removed", {"group_id": group, "removed_user_id": bob.user_id})
    assert heard == [commit, reset, left, commit, left, commit, reset]
    stored = [(each.sender_id, each.body) for each in await alice.fetch(group)]
    assert stored == [
        (bob.user_id, b"one"),
        (bob.user_id, b"two"),
        (bob.user_id, b"three"),
        (alice.user_id, b"four commit"),
        (bob.user_id, b"five"),
    ]
    assert (await alice.get("/groups"))["groups"][0]["mls_group_id"] == "0aFF"


async def test_an_external_join_needs_a_group_info(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = (await alice.post("/groups", group_name="friends"))["group_id"]
    path = f"/groups/{group}/external-join"
    await expect(alice.post(path, commit_message=encode(b"c")), 400, 100)
    await expect(alice.post(path), 400, 100)
    await expect(bob.post(path), 401, 400)
    await expect(bob.post(path, commit_message=encode(b"c")), 401, 400)
    assert await alice.fetch(group) == []
    await alice.post(f"/groups/{group}/commit", group_info=encode(b"info"))
    await alice.post(path, commit_message=encode(b"c"))
    assert await alice.group_info(group) == b"info"


async def test_an_external_join_needs_no_commit(running: Running) -> None:
    """All hear of it as with one, and nothing is stored."""
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.begin_join(group)
    path = f"/groups/{group}/external-join"
    async with listening(alice) as events:
        await bob.post(path, mls_group_id="0aFF")
        await bob.post(path, commit_message="")
        heard = [await events.next() for _ in range(2)]
    commit = ("group_update", {"group_id": group, "update_type": "commit"})
    assert heard == [commit, ("identity_reset", {"group_id": group, "user_id": bob.user_id})]
    assert await alice.fetch(group) == []
    assert (await alice.get("/groups"))["groups"][0]["mls_group_id"] == "0aFF"


async def test_the_ban_of_somebody_who_is_no_member_brings_no_commit(running: Running) -> None:
    group, (alice, bob) = await friends(running, "alice", "bob")
    stranger = await running.user("dave")
    before = await alice.group_info(group)
    carried = {"commit_message": encode(b"commit"), "group_info": encode(b"new info")}
    async with listening(bob) as events:
        await alice.act("ban", group, stranger, **carried)
        number = await alice.send(group)
        assert (await events.next())[1]["sequence_num"] == number == 1
    assert [each["username"] for each in await banned(alice, group)] == ["dave"]
    assert await alice.group_info(group) == before
    assert [each.body for each in await bob.fetch(group)] == [b"hello"]


async def test_whoever_goes_no_longer_holds_back_what_the_rest_has_fetched(running: Running, cleanup: Cleanup) -> None:
    ways = ["remove", "ban", "delete-account"]
    users = await running.users("alice", "bob", *(f"by_{way.replace('-', '_')}" for way in ways))
    alice, bob = users[:2]
    groups = {}
    for way, idle in zip(ways, users[2:], strict=True):
        group = groups[way] = await alice.create_group(f"g_{idle.user_id.replace('-', '')}", expiry=0)
        for member in (bob, idle):
            await member.join(group)
        for _ in range(3):
            await alice.send(group)
        await bob.fetch(group, limit=2)
    assert (await cleanup(running))["fetched"] == 0
    for way, idle in zip(ways, users[2:], strict=True):
        if way == "delete-account":
            await idle.post("/delete-account", password=PASSWORD)
        else:
            await alice.act(way, groups[way], idle)
    assert (await cleanup(running))["fetched"] == 2 * len(ways)
    for group in groups.values():
        assert await bob.numbers(group) == [3]
