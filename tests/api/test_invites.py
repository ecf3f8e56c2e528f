"""Invites and welcomes over HTTP: deposited, answered, withdrawn, expired."""

import asyncio
import sqlite3
from dataclasses import replace
from uuid import UUID

import pytest

from conclave import app_keys
from conclave.actions import accounts, invites as inviting
from conclave.config.settings import Config
from conclave.server import duties
from conclave.store import bodies
from tests.conftest import Cleanup, Running, StartServer
from tests.support.client import API, PASSWORD, Client, RefusedError, encode, expect
from tests.support.listening import BELL, Heard, audience, listening
from tests.support.racing import right_after_session

WEEK = 604_800
CARRIED = {
    "commit_message": encode(b"add commit"),
    "welcome_message": encode(b"add welcome"),
    "group_info": encode(b"add info"),
}


async def stored(running: Running) -> list[bytes]:
    """All bodies that are stored, but for those of deleted groups' messages and of messages that merely say hello."""

    def read(connection: sqlite3.Connection) -> list[bytes]:
        others = bodies.get_many(connection, [row[0] for row in connection.execute("SELECT body_id FROM bodies")])
        rows = connection.execute(
            "SELECT group_key, group_id, sequence_num FROM messages JOIN groups USING (group_key)"
        )
        return [*others.values(), *(bodies.of_message(connection, *row) or b"" for row in rows)]

    found = await running.app[app_keys.STORE].read(read)
    return sorted(body for body in found if body != b"hello")


async def messages_of(client: Client, group: str) -> list[tuple[str, bytes]]:
    return [(each.sender_id, each.body) for each in await client.fetch(group)]


def declined(group: str, invitee: Client) -> Heard:
    return "invite_declined", {"group_id": group, "declined_user_id": invitee.user_id}


async def test_an_invite_is_seen_by_its_invitee_and_the_admins_and_changes_nothing_else(running: Running) -> None:
    alice, bob, carol, dave = await running.users("alice", "bob", "carol", "dave")
    group = await alice.create_group("friends", public=False)
    await alice.patch(group, alias="Old Friends")
    await alice.bring(bob, group)
    running.clock.advance(5)
    invite = await alice.invite(group, carol)
    shown = {
        "invite_id": invite,
        "group_id": group,
        "group_name": "friends",
        "group_alias": "Old Friends",
        "inviter_username": "alice",
        "created_at": running.clock.now(),
        "invitee_id": carol.user_id,
        "inviter_id": alice.user_id,
    }
    assert await carol.get("/invites") == {"invites": [shown], "more": False}
    assert await alice.get(f"/groups/{group}/invites") == {"invites": [shown], "more": False}
    for other in (bob, dave):
        await expect(other.get(f"/groups/{group}/invites"), 401, 401)
        assert await other.invited_to() == []
    assert await alice.roles(group) == {"alice": "admin", "bob": "member"}
    assert await alice.group_info(group) == b"add info", "that of bob's"
    assert await carol.welcomes() == []
    await expect(carol.fetch(group), 401, 400)


@pytest.mark.parametrize("missing", ["invitee_id", *CARRIED])
@pytest.mark.parametrize("empty", ["", None])
async def test_an_invite_needs_all_that_its_acceptance_does(running: Running, missing: str, empty: str | None) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    before = await stored(running)
    body = CARRIED | {"invitee_id": bob.user_id} | {missing: empty}
    answer = await expect(
        alice.post(f"/groups/{group}/escrow-invite", **body),
        400,
        101 if (missing, empty) == ("invitee_id", "") else 100,
    )
    assert list(answer["errors"]) == [missing]
    assert await bob.invited_to() == []
    assert await stored(running) == before


async def test_who_cannot_be_invited(running: Running) -> None:
    alice, bob, carol, dave = await running.users("alice", "bob", "carol", "dave")
    group = await alice.create_group("friends")
    await bob.join(group)
    await alice.act("ban", group, carol)
    before = await stored(running)
    path = f"/groups/{group}/escrow-invite"
    await expect(alice.post(path, invitee_id="00000000-0000-4000-8000-000000000000", **CARRIED), 404, 300)
    for member in (alice, bob):
        await expect(alice.invite(group, member), 409, 301)
    await expect(alice.invite(group, carol), 403, 403)
    await expect(bob.invite(group, dave), 401, 401)
    assert await stored(running) == before
    await alice.invite(group, dave)
    await expect(alice.invite(group, dave), 409, 301)
    await expect(dave.join(group), 409, 301)


async def test_accepting_brings_all_that_the_invite_carries(running: Running) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("friends", public=False)
    await alice.bring(bob, group, b"first")
    await alice.send(group, b"hello")
    invite = await alice.invite(group, carol, b"second")
    before = await stored(running)
    assert await carol.post(f"/invites/{invite}/accept") == {}
    assert await alice.roles(group) == {"alice": "admin", "bob": "member", "carol": "member"}
    assert await messages_of(bob, group) == [
        (alice.user_id, b"first commit"),
        (alice.user_id, b"hello"),
        (alice.user_id, b"second commit"),
    ]
    assert await carol.group_info(group) == b"second info"
    assert await carol.welcomes() == [b"second welcome"]
    assert await carol.invited_to() == []
    assert (await alice.get(f"/groups/{group}/invites"))["invites"] == []
    assert sorted([*(await stored(running)), b"first info"]) == before, "the rest has changed hands, none was copied"
    await expect(carol.accept(invite), 404, 300)
    await expect(carol.decline(invite), 404, 300)


@pytest.mark.parametrize("point", ["accept.member_added", "accept.stored"])
async def test_an_acceptance_that_fails_on_its_way_has_changed_nothing(
    running: Running, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    invite = await alice.invite(group, bob)
    before = await stored(running)

    def fail(name: str) -> None:
        if name == point:
            raise RuntimeError(name)

    async with listening(alice) as events:
        with monkeypatch.context() as patched:
            patched.setattr(inviting, "reach", fail)
            await expect(bob.accept(invite), 500, 0)
        assert await alice.roles(group) == {"alice": "admin"}
        assert await alice.fetch(group) == []
        assert await alice.group_info(group) == b"group info"
        assert await bob.welcomes() == []
        assert await stored(running) == before
        await bob.accept(invite)
        assert await events.next() == ("group_update", {"group_id": group, "update_type": "commit"})
    assert await messages_of(bob, group) == [(alice.user_id, b"add commit")]


async def test_the_commit_can_be_read_when_its_event_comes(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    invitees = await running.users(*(f"user{number}" for number in range(8)))
    made = [await alice.invite(group, each, each.user_id.encode()) for each in invitees]
    async with listening(alice) as events:
        for number, (invitee, invite) in enumerate(zip(invitees, made, strict=True)):
            accepting = asyncio.create_task(invitee.accept(invite))
            assert await events.next() == ("group_update", {"group_id": group, "update_type": "commit"})
            [commit] = await alice.fetch(group, number)
            assert (commit.sender_id, commit.body) == (alice.user_id, invitee.user_id.encode() + b" commit")
            assert await alice.group_info(group) == invitee.user_id.encode() + b" info"
            await accepting


async def test_the_welcome_can_be_read_when_its_event_comes(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    async with listening(bob) as events:
        invite = await alice.invite(group, bob)
        assert await events.next()
        accepting = asyncio.create_task(bob.accept(invite))
        assert await events.next() == ("welcome", {"group_id": group, "group_alias": ""})
        assert await bob.welcomes() == [b"add welcome"]
        await accepting


@pytest.mark.parametrize(
    "how", ["leaves", "is removed", "is banned", "is demoted", "is disabled", "is deleted", "deletes the account"]
)
async def test_an_invite_ends_with_the_inviter_s_right_to_invite(running: Running, how: str) -> None:
    """The commit and group info of who is out would replace those of the group otherwise."""
    alice, bob, carol, dave = await running.users("alice", "bob", "carol", "dave")
    group, other = await alice.create_group("friends"), await alice.create_group("others")
    for each in (group, other):
        await carol.join(each)
        await alice.act("promote", each, carol)
    invite, elsewhere = await alice.invite(group, bob), await alice.invite(other, bob, b"else")
    await carol.invite(group, dave, b"kept")
    async with audience(await running.user(BELL), bob, carol, dave) as gathered:
        await gathered.heard()
        await lose_the_right(running, group, alice, carol, how)
        everywhere = "disabled" in how or "delete" in how
        places = [group, other] if everywhere else [group]
        heard = await gathered.heard()
        assert sorted(heard.pop("bob"), key=str) == sorted(
            [("invite_cancelled", {"group_id": each}) for each in places], key=str
        )
        assert heard.keys() <= {"carol"}, "dave's invite is another admin's"
    await expect(bob.accept(invite), 404, 300)
    await expect(bob.decline(invite), 404, 300)
    await expect(bob.fetch(group), 401, 400)
    assert await bob.invited_to() == ([] if everywhere else [other])
    assert await carol.fetch(group) == []
    assert await carol.group_info(group) == b"group info"
    withdrawn = (b"add ", b"else ") if everywhere else (b"add ",)
    assert not [body for body in await stored(running) if body.startswith(withdrawn)]
    if not everywhere:
        await bob.accept(elsewhere)
    assert await dave.invited_to() == [group]
    await bob.accept(await carol.invite(group, bob, b"again"))
    assert await carol.group_info(group) == b"again info"


async def lose_the_right(running: Running, group: str, alice: Client, carol: Client, how: str) -> None:
    """End Alice's right to invite to a group of which Carol is an admin too."""
    if how == "leaves":
        await alice.leave(group)
    elif how == "deletes the account":
        await alice.post("/delete-account", password=PASSWORD)
    elif how in ("is disabled", "is deleted"):
        user_id, store = UUID(alice.user_id).bytes, running.app[app_keys.STORE]
        if how == "is disabled":
            await store.write(accounts.disable, user_id)
        else:
            await store.write(accounts.remove, running.app[app_keys.CONTEXT], user_id)
    else:
        await carol.act({"is removed": "remove", "is banned": "ban", "is demoted": "demote"}[how], group, alice)


@pytest.mark.parametrize("how", ["is removed", "is banned", "is demoted"])
async def test_why_an_invite_was_withdrawn_is_heard_before_that_it_was(running: Running, how: str) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("friends")
    await carol.join(group)
    await alice.act("promote", group, carol)
    await alice.invite(group, bob)
    if how == "is demoted":
        cause: Heard = "group_update", {"group_id": group, "update_type": "role_change"}
    else:
        cause = "member_removed", {"group_id": group, "removed_user_id": alice.user_id}
    async with audience(await running.user(BELL), alice, bob, carol) as gathered:
        await gathered.heard()
        await lose_the_right(running, group, alice, carol, how)
        assert await gathered.heard() == {
            "alice": [cause, declined(group, bob)],
            "bob": [("invite_cancelled", {"group_id": group})],
            "carol": [cause],
        }


async def test_who_was_demoted_and_promoted_again_has_no_invites_from_before(running: Running) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("friends")
    await carol.join(group)
    await alice.act("promote", group, carol)
    invite = await alice.invite(group, bob)
    await carol.act("demote", group, alice)
    await carol.act("promote", group, alice)
    await expect(bob.accept(invite), 404, 300)
    await bob.accept(await alice.invite(group, bob))


async def test_a_welcome_that_waits_stays_when_its_inviter_loses_the_right(running: Running) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("friends")
    await carol.join(group)
    await alice.act("promote", group, carol)
    await alice.bring(bob, group)
    await carol.act("ban", group, alice)
    assert await bob.welcomes() == [b"add welcome"]
    assert await bob.roles(group) == {"carol": "admin", "bob": "member"}


async def test_an_acceptance_beside_a_ban_comes_before_it_or_not_at_all(running: Running) -> None:
    alice, carol = await running.users("alice", "carol")
    for number in range(8):
        invitee = await running.user(f"user{number}")
        group = await carol.create_group(f"group{number}")
        await alice.join(group)
        await carol.act("promote", group, alice)
        invite = await alice.invite(group, invitee)
        racing = [invitee.accept(invite), carol.act("ban", group, alice)]
        outcomes = await asyncio.gather(*(racing if number % 2 else reversed(racing)), return_exceptions=True)
        refused = next((each for each in outcomes if isinstance(each, RefusedError)), None)
        expected = ["carol"] if refused else ["carol", f"user{number}"]
        assert sorted(await carol.roles(group)) == expected
        assert await carol.group_info(group) == (b"group info" if refused else b"add info")
        assert await messages_of(carol, group) == ([] if refused else [(alice.user_id, b"add commit")])
        assert refused is None or (refused.status, refused.code) == (404, 300)


async def test_who_is_disabled_while_the_request_comes_in_invites_nobody(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")

    async def disable() -> None:
        await running.app[app_keys.STORE].write(accounts.disable, UUID(alice.user_id).bytes)

    right_after_session(running, monkeypatch, disable)
    body = CARRIED | {"invitee_id": bob.user_id}
    await expect(alice.post(f"/groups/{group}/escrow-invite", **body), 401, 202)
    assert await bob.invited_to() == []


async def test_invites_that_a_former_version_has_left_end_with_the_start(
    config: Config, start_server: StartServer
) -> None:
    async with start_server(config) as running:
        alice, bob, carol = await running.users("alice", "bob", "carol")
        group = await alice.create_group("friends")
        await carol.join(group)
        await alice.act("promote", group, carol)
        invite = await alice.invite(group, bob)
        await carol.invite(group, await running.user("dave"))
        # As one did that left them be.
        await running.app[app_keys.STORE].write(
            lambda connection: connection.execute("UPDATE users SET disabled = 1 WHERE username = 'alice'")
        )
        await expect(bob.accept(invite), 404, 300)
        assert await bob.invited_to() == [group]
    async with start_server(config) as running:
        bob = Client(running.http, running.url, bob.token)
        assert await bob.invited_to() == []
        assert await running.query("SELECT username FROM invites JOIN users ON user_id = invitee_id") == [("dave",)]


async def test_the_inviter_has_to_fetch_the_commit_too(running: Running, cleanup: Cleanup) -> None:
    """It was made when the invite was: that it is a message now is news to whoever made it."""
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends", expiry=0)
    await bob.accept(await alice.invite(group, bob))
    assert await bob.numbers(group) == [1]
    assert (await cleanup(running))["fetched"] == 0
    assert await alice.numbers(group) == [1]
    assert (await cleanup(running))["fetched"] == 1


async def test_of_two_acceptances_at_the_same_time_one_wins(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    invite = await alice.invite(group, bob)
    outcomes = await asyncio.gather(*(bob.accept(invite) for _ in range(5)), return_exceptions=True)
    assert outcomes.count(None) == 1
    refused = [(each.status, each.code) for each in outcomes if isinstance(each, RefusedError)]
    assert refused == [(404, 300)] * 4
    assert await alice.numbers(group) == [1]
    assert await bob.welcomes() == [b"add welcome"]


async def test_an_invite_is_its_invitee_s_alone(running: Running) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("friends")
    invite = await alice.invite(group, bob)
    for other in (alice, carol):
        await expect(other.accept(invite), 401, 400)
        await expect(other.decline(invite), 401, 400)
    assert await bob.invited_to() == [group]
    await alice.post(f"/groups/{group}/cancel-invite", invitee_id=bob.user_id)
    await expect(carol.accept(invite), 404, 300)


@pytest.mark.parametrize("end", ["decline", "cancel", "ban", "delete-account", "inviter's account", "delete-group"])
async def test_an_invite_that_comes_to_nothing_leaves_nothing(running: Running, end: str) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("friends")
    await carol.join(group)
    await alice.act("promote", group, carol)
    before = await stored(running)
    invite = await alice.invite(group, bob)
    match end:
        case "decline":
            assert await bob.post(f"/invites/{invite}/decline") == {}
        case "cancel":
            assert await carol.post(f"/groups/{group}/cancel-invite", invitee_id=bob.user_id) == {}
        case "ban":
            await carol.act("ban", group, bob)
        case "delete-account":
            await bob.post("/delete-account", password=PASSWORD)
        case "inviter's account":
            await alice.post("/delete-account", password=PASSWORD)
        case _:
            await alice.post(f"/groups/{group}/delete")
            before.remove(b"group info")
    assert await running.query("SELECT * FROM invites") == []
    assert await stored(running) == before
    if end != "delete-account":
        assert await bob.invited_to() == []
        await expect(bob.accept(invite), 404, 300)
    if end != "delete-group":
        await expect(carol.post(f"/groups/{group}/cancel-invite", invitee_id=bob.user_id), 404, 300)
        assert await carol.group_info(group) == b"group info"
        assert "bob" not in await carol.roles(group)


async def test_an_invite_is_dead_to_the_second(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    invite = await alice.invite(group, bob)
    running.clock.advance(WEEK)
    assert await bob.invited_to() == [group]
    assert len((await alice.get(f"/groups/{group}/invites"))["invites"]) == 1
    await expect(alice.invite(group, bob), 409, 301)
    await expect(bob.join(group), 409, 301)
    running.clock.advance(1)
    assert await bob.invited_to() == []
    assert (await alice.get(f"/groups/{group}/invites"))["invites"] == []
    await expect(bob.accept(invite), 404, 300)
    await expect(bob.decline(invite), 404, 300)
    await expect(alice.accept(invite), 404, 300)
    await expect(alice.post(f"/groups/{group}/cancel-invite", invitee_id=bob.user_id), 404, 300)


async def test_an_invite_lives_to_its_last_second(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    invite = await alice.invite(group, bob)
    running.clock.advance(WEEK)
    await bob.accept(invite)
    assert await bob.roles(group) == {"alice": "admin", "bob": "member"}


@pytest.fixture
def quick_outbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duties, "OUTBOX_INTERVAL_SECONDS", 0.02)


async def handed_on(running: Running) -> None:
    """Wait until the server has told what cleanup left to be told."""
    while await running.query("SELECT 1 FROM outbox"):
        await asyncio.sleep(0.02)


async def test_cleanup_removes_a_dead_invite_and_tells_its_inviter_once(
    quick_outbox: None, running: Running, cleanup: Cleanup
) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("friends")
    await alice.invite(group, bob)
    async with audience(await running.user(BELL), alice, bob, carol) as gathered:
        await gathered.heard()
        running.clock.advance(WEEK)
        assert (await cleanup(running))["invites"] == 0
        running.clock.advance(1)
        assert (await cleanup(running))["invites"] == 1
        await handed_on(running)
        assert await gathered.heard() == {"alice": [declined(group, bob)]}
        assert (await cleanup(running))["invites"] == 0
        await handed_on(running)
        assert await gathered.heard() == {}
    assert await running.query("SELECT * FROM invites") == []
    assert not [body for body in await stored(running) if body.startswith(b"add")]
    await bob.join(group)


@pytest.mark.parametrize("by", ["a new invite", "joining", "a ban"])
async def test_a_dead_invite_that_makes_way_is_told_once(running: Running, by: str) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("friends")
    await carol.join(group)
    await alice.act("promote", group, carol)
    await alice.invite(group, bob, b"dead")
    running.clock.advance(WEEK + 1)
    async with audience(await running.user(BELL), alice, bob, carol) as gathered:
        await gathered.heard()
        expected = {"alice": [declined(group, bob)]}
        if by == "a new invite":
            invite = await carol.invite(group, bob)
            [pending] = (await bob.get("/invites"))["invites"]
            assert (pending["invite_id"], pending["inviter_username"]) == (invite, "carol")
            told = {"invite_id": invite, "group_id": group, "inviter_id": carol.user_id}
            expected["bob"] = [("invite_received", told | {"group_name": "friends", "group_alias": ""})]
        elif by == "joining":
            await bob.begin_join(group)
        else:
            await carol.act("ban", group, bob)
        assert await gathered.heard() == expected
    left = await running.query("SELECT created_at FROM invites")
    assert left == ([(running.clock.now(),)] if by == "a new invite" else []), "none is left for cleanup to tell of"
    assert not [body for body in await stored(running) if body.startswith(b"dead")]


async def test_an_invite_that_died_before_its_invitee_joined_does_not_come_back(
    config: Config, start_server: StartServer
) -> None:
    """Whatever the operator then allows invites to live for."""
    async with start_server(replace(config, invite_ttl_seconds=60)) as running:
        alice, bob = await running.users("alice", "bob")
        group = await alice.create_group("friends")
        invite = await alice.invite(group, bob)
        running.clock.advance(61)
        await bob.join(group)
    async with start_server(replace(config, invite_ttl_seconds=WEEK)) as running:
        bob = Client(running.http, running.url, bob.token)
        assert await bob.invited_to() == []
        await expect(bob.accept(invite), 404, 300)


async def test_a_welcome_is_fetched_until_its_user_accepts_it(running: Running) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    first, second = await alice.create_group("first"), await alice.create_group("second")
    await alice.patch(second, alias="The Second")
    for group in (first, second):
        await alice.bring(bob, group, group.encode())
    listed = (await bob.get("/welcomes"))["welcomes"]
    assert [(each["group_id"], each["group_alias"]) for each in listed] == [(first, ""), (second, "The Second")]
    assert await bob.welcomes() == [first.encode() + b" welcome", second.encode() + b" welcome"]
    path = f"/welcomes/{listed[0]['welcome_id']}/accept"
    for other in (alice, carol):
        await expect(other.post(path), 404, 300)
    async with running.http.post(running.url + API + path, headers={"Authorization": f"Bearer {bob.token}"}) as answer:
        assert (answer.status, await answer.read()) == (204, b"")
    await expect(bob.post(path), 404, 300)
    assert await bob.welcomes() == [second.encode() + b" welcome"]
    await bob.post(f"/welcomes/{listed[1]['welcome_id']}/accept")
    left = [group.encode() + kind for group in (first, second) for kind in (b" commit", b" info")]
    assert await stored(running) == sorted(left)


@pytest.mark.parametrize("end", ["leave", "remove", "ban", "delete-account", "delete"])
async def test_welcomes_go_with_the_membership(running: Running, end: str) -> None:
    alice, bob = await running.users("alice", "bob")
    group, other = await alice.create_group("friends"), await alice.create_group("others")
    await alice.bring(bob, group, b"one")
    await alice.bring(bob, other, b"two")
    if end == "leave":
        await bob.leave(group)
    elif end == "delete":
        await alice.post(f"/groups/{group}/delete")
    elif end == "delete-account":
        await bob.post("/delete-account", password=PASSWORD)
    else:
        await alice.act(end, group, bob)
    if end == "delete-account":
        assert await running.query("SELECT 1 FROM welcomes WHERE user_id = ?", UUID(bob.user_id).bytes) == []
    else:
        assert await bob.welcomes() == [b"two welcome"]


async def test_a_deleted_group_takes_its_invites_and_welcomes_along(running: Running) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    kept = await alice.create_group("kept")
    await alice.invite(kept, carol)
    before = await stored(running)
    group = await alice.create_group("friends")
    await alice.bring(bob, group, b"gone")
    invite = await alice.invite(group, carol, b"gone")
    await alice.post(f"/groups/{group}/delete")
    assert await bob.welcomes() == []
    assert await carol.invited_to() == [kept]
    await expect(carol.accept(invite), 404, 300)
    assert await stored(running) == before
    await carol.accept((await carol.get("/invites"))["invites"][0]["invite_id"])
    assert await carol.welcomes() == [b"add welcome"]
