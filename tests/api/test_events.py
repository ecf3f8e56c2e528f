"""Events over a real stream: exactly the documented recipients hear them, on all their streams."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from typing import TypeVar
from unittest.mock import ANY
from uuid import UUID

import pytest
from aiohttp import web

from conclave import app_keys, events as events_module
from conclave.actions import timers as timer_actions
from conclave.api import events as api_events
from conclave.auth import tokens
from conclave.store.engine.sqlite import connect
from conclave.store.resources import sessions
from conclave.store.resources.timers import Redaction
from conclave.wire import stream_connection
from conclave.wire.conclave_pb2 import ServerEvent
from conclave.wire.formats import Format
from tests.conftest import Running
from tests.support.client import PACKAGE, PASSWORD, Client, encode, expect
from tests.support.listening import BELL, Audience, Heard, audience, deaf, deleted, listening, open_stream
from tests.support.protobuf import ProtobufClient
from tests.support.server import PATIENCE, until

T = TypeVar("T")


class Room:
    """Five users who listen: alice, the admin of friends, bob and carol, its members, dave and eve, strangers.

    Nothing of the room's making is left to be heard.
    """

    def __init__(self, running: Running, users: list[Client], group: str, audience: Audience) -> None:
        self.running = running
        self.alice, self.bob, self.carol, self.dave, self.eve = users
        self.group = group
        self.audience = audience

    async def told(self, **expected: list[Heard]) -> None:
        """Check what each user has heard since the last time: these events in this order, and nobody else anything."""
        assert await self.audience.heard() == expected


@pytest.fixture
async def room(running: Running) -> AsyncIterator[Room]:
    users = await running.users("alice", "bob", "carol", "dave", "eve")
    group = await users[0].create_group("friends")
    for member in users[1:3]:
        await member.join(group)
    async with audience(await running.user(BELL), *users) as gathered:
        room = Room(running, users, group, gathered)
        await room.audience.heard()
        yield room


def update(group: str, update_type: str) -> Heard:
    return "group_update", {"group_id": group, "update_type": update_type}


def removed(group: str, user: Client) -> Heard:
    return "member_removed", {"group_id": group, "removed_user_id": user.user_id}


def declined(group: str, user: Client) -> Heard:
    return "invite_declined", {"group_id": group, "declined_user_id": user.user_id}


def cancelled(group: str) -> Heard:
    return "invite_cancelled", {"group_id": group}


def received(group: str, invite: str, inviter: Client, *, name: str = "friends", alias: str = "") -> Heard:
    invited = {"invite_id": invite, "group_id": group, "inviter_id": inviter.user_id}
    return "invite_received", invited | {"group_name": name, "group_alias": alias}


async def test_a_message_and_a_commit_are_heard_by_all_members_but_the_sender(room: Room) -> None:
    await room.alice.send(room.group)
    sent = ("new_message", {"group_id": room.group, "sequence_num": 1, "sender_id": room.alice.user_id})
    await room.told(bob=[sent], carol=[sent])
    await room.bob.post(f"/groups/{room.group}/commit", commit_message=encode(b"c"), group_info=encode(b"i"))
    await room.told(alice=[update(room.group, "commit")], carol=[update(room.group, "commit")])
    await room.bob.post(f"/groups/{room.group}/commit", group_info=encode(b"i"), mls_group_id="0aff")
    await room.told()


async def test_settings_of_a_group_are_heard_by_all_members_the_sender_included(room: Room) -> None:
    everybody = {"alice": [update(room.group, "group_settings")]}
    everybody |= {"bob": everybody["alice"], "carol": everybody["alice"]}
    await room.alice.patch(room.group, alias="x")
    await room.told(**everybody)
    await room.alice.set_expiry(room.group, 60)
    await room.told(**everybody)


async def test_a_changed_alias_is_heard_in_each_group_of_the_user(room: Room) -> None:
    other = await room.carol.create_group("others")
    await room.eve.begin_join(other)
    await room.told(carol=[update(other, "group_settings")])
    await room.carol.call("PATCH", "/me", json={"alias": "x"})
    both = [update(room.group, "group_settings"), update(other, "group_settings")]
    await room.told(alice=both[:1], bob=both[:1], carol=both, eve=both[1:])
    await room.carol.call("PATCH", "/me", json={})
    await room.told()


async def test_roles_are_heard_by_all_members(room: Room) -> None:
    event = [update(room.group, "role_change")]
    await room.alice.act("promote", room.group, room.bob)
    await room.told(alice=event, bob=event, carol=event)
    await room.bob.act("demote", room.group, room.alice)
    await room.told(alice=event, bob=event, carol=event)


@pytest.mark.parametrize("action", ["remove", "ban"])
async def test_a_removed_member_hears_of_it_as_the_others_do(room: Room, action: str) -> None:
    event = [removed(room.group, room.carol)]
    await room.alice.act(action, room.group, room.carol, commit_message=encode(b"c"), group_info=encode(b"i"))
    await room.told(alice=event, bob=event, carol=event)
    await room.bob.send(room.group)
    assert set(await room.audience.heard()) == {"alice"}, "and nothing more of the group"
    both = [removed(room.group, room.alice), update(room.group, "role_change")]
    await room.alice.act(action, room.group, room.alice)
    await room.told(alice=both[:1], bob=both)
    await room.bob.act(action, room.group, room.bob)
    await room.told(bob=[removed(room.group, room.bob)])


async def test_who_leaves_hears_nothing_of_it_and_the_others_of_the_new_admin_too(room: Room) -> None:
    await room.carol.post(f"/groups/{room.group}/leave", commit_message=encode(b"bye"))
    await room.told(alice=[removed(room.group, room.carol)], bob=[removed(room.group, room.carol)])
    await room.alice.leave(room.group)
    await room.told(bob=[removed(room.group, room.alice), update(room.group, "role_change")])
    await room.bob.leave(room.group)
    await room.told()


async def test_a_joiner_is_new_to_all_and_a_member_who_joins_anew_to_the_others(room: Room) -> None:
    await room.dave.begin_join(room.group)
    await room.told()
    path = f"/groups/{room.group}/external-join"
    await room.dave.post(path, commit_message=encode(b"c"))
    event = [update(room.group, "commit")]
    await room.told(alice=event, bob=event, carol=event, dave=event)
    await room.dave.post(path, commit_message=encode(b"c"))
    event = [("identity_reset", {"group_id": room.group, "user_id": room.dave.user_id})]
    await room.told(alice=event, bob=event, carol=event)


async def test_the_ways_of_an_invite_are_heard_by_inviter_and_invitee(room: Room) -> None:
    group = room.group
    await room.alice.patch(group, alias="Old Friends")
    await room.alice.act("promote", group, room.bob)
    await room.audience.heard()

    async def invite() -> str:
        made = await room.bob.invite(group, room.dave)
        await room.told(dave=[received(group, made, room.bob, alias="Old Friends")])
        return made

    await room.dave.decline(await invite())
    await room.told(bob=[declined(group, room.dave)])
    await invite()
    await room.alice.post(f"/groups/{group}/cancel-invite", invitee_id=room.dave.user_id)
    await room.told(bob=[declined(group, room.dave)], dave=[cancelled(group)])
    await invite()
    await room.alice.act("ban", group, room.dave)
    await room.told(bob=[declined(group, room.dave)], dave=[cancelled(group)])
    await room.alice.act("ban", group, room.dave)
    await room.alice.act("unban", group, room.dave)
    await room.told()
    await room.dave.accept(await invite())
    event = [update(group, "commit")]
    welcome = ("welcome", {"group_id": group, "group_alias": "Old Friends"})
    await room.told(alice=event, bob=event, carol=event, dave=[welcome])
    [pending] = (await room.dave.get("/welcomes"))["welcomes"]
    await room.dave.post(f"/welcomes/{pending['welcome_id']}/accept")
    await room.told()


async def test_a_deleted_group_is_heard_of_by_its_former_members_and_its_invitees(room: Room) -> None:
    await room.alice.invite(room.group, room.dave)
    await room.audience.heard()
    await room.alice.post(f"/groups/{room.group}/delete")
    event = [("group_deleted", {"group_id": room.group})]
    await room.told(alice=event, bob=event, carol=event, dave=[cancelled(room.group)])
    other = await room.alice.create_group("others")
    await room.alice.invite(other, room.eve)
    await room.alice.leave(other)
    await room.told(
        alice=[update(other, "group_settings")],
        eve=[received(other, ANY, room.alice, name="others"), cancelled(other)],
    )


async def test_a_deleted_account_is_heard_of_by_members_inviters_and_invitees(room: Room) -> None:
    other = await room.eve.create_group("others")
    await room.alice.invite(room.group, room.dave)
    await room.eve.invite(other, room.alice)
    sole = await room.alice.create_group("sole")
    await room.alice.invite(sole, room.eve)
    await room.audience.heard()
    await room.alice.post("/delete-account", password=PASSWORD)
    left = [removed(room.group, room.alice), update(room.group, "role_change")]
    await room.told(
        bob=left,
        carol=left,
        dave=[cancelled(room.group)],
        eve=[cancelled(sole), declined(other, room.alice)],
    )
    assert room.audience.ended("alice")
    assert not room.audience.ended("bob")


async def test_what_concerns_nobody_else_is_not_heard(room: Room) -> None:
    await room.alice.upload(PACKAGE, PACKAGE + b"2", last_resort=PACKAGE + b"3")
    await room.dave.upload(PACKAGE)
    await room.bob.take(room.alice)
    await room.alice.post(f"/groups/{room.group}/invite", user_ids=[room.dave.user_id])
    await room.alice.post("/reset-account")
    await room.alice.act("ban", room.group, room.eve)
    await room.alice.act("unban", room.group, room.eve)
    phone = await room.alice.another("alice")
    [session] = [each["id"] for each in (await phone.get("/sessions"))["sessions"] if each["current"]]
    await room.alice.call("DELETE", f"/sessions/{session}")
    for path in ("/me", "/groups", "/groups/public", "/invites", "/welcomes", "/sessions", "/users/bob"):
        await room.alice.get(path)
    for path in ("group-info", "retention", "invites", "messages", "admins", "banned"):
        await room.alice.get(f"/groups/{room.group}/{path}")
    await room.told()


async def test_a_refused_request_is_not_heard(room: Room) -> None:
    """Also where it had done a part of what it was asked."""
    group, path = room.group, f"/groups/{room.group}"
    other = await room.eve.create_group("others")
    invite = await room.alice.invite(group, room.dave)
    await room.audience.heard()
    commit = {"commit_message": encode(b"c"), "group_info": encode(b"i")}
    await expect(room.alice.patch(group, group_name="others", alias="x"), 409, 301)
    await expect(room.alice.patch(group, group_name="_"), 400, 101)
    await expect(room.alice.invite(group, room.dave), 409, 301)
    await expect(room.alice.invite(group, room.bob), 409, 301)
    await expect(room.eve.accept(invite), 401, 400)
    await expect(room.eve.decline(invite), 401, 400)
    await expect(room.alice.post(f"{path}/cancel-invite", invitee_id=room.eve.user_id), 404, 300)
    await expect(room.alice.act("promote", group, room.alice), 409, 301)
    await expect(room.alice.act("promote", group, room.dave), 400, 100)
    await expect(room.alice.act("demote", group, room.alice), 400, 100)
    await expect(room.alice.act("remove", group, room.dave, **commit), 400, 100)
    await expect(room.alice.act("unban", group, room.dave), 400, 100)
    await expect(room.dave.join(group), 409, 301)
    await expect(room.alice.call("PATCH", "/me", json={"alias": "a" * 65}), 400, 101)
    await expect(room.alice.post("/delete-account", password="wrong"), 401, 203)
    for action in ("promote", "demote", "remove", "ban", "unban"):
        await expect(room.bob.act(action, group, room.carol), 401, 401)
    await expect(room.bob.patch(group, alias="x"), 401, 401)
    await expect(room.bob.post(f"{path}/delete"), 401, 401)
    await expect(room.bob.post(f"{path}/cancel-invite", invitee_id=room.dave.user_id), 401, 401)
    await expect(room.eve.send(group), 401, 400)
    await expect(room.eve.leave(group), 401, 400)
    await expect(room.eve.post(f"{path}/commit", **commit), 401, 400)
    await expect(room.eve.post(f"{path}/external-join", commit_message=encode(b"c")), 401, 400)
    await expect(room.alice.post(f"/groups/{other}/delete"), 401, 401)
    await room.told()


async def test_events_of_a_group_come_in_the_order_of_their_transactions(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    async with listening(bob) as events:
        await asyncio.gather(*(alice.send(group) for _ in range(100)))
        assert [(await events.next())[1]["sequence_num"] for _ in range(100)] == list(range(1, 101))


async def test_what_an_event_tells_of_can_be_read_when_it_comes(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    async with listening(bob) as events:
        for number in range(1, 20):
            sending = asyncio.create_task(alice.send(group))
            await events.next()
            assert await bob.numbers(group, number - 1) == [number]
            await sending


async def test_a_protobuf_session_hears_hex_without_names(running: Running) -> None:
    alice = await running.user("alice")
    bob = await ProtobufClient.register(running.http, running.url, "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    async with listening(bob) as events, listening(bob, format="json") as in_json:
        await alice.send(group)
        name, data = await events.next()
        assert (name, data) == ("", data.lower())
        event = ServerEvent.FromString(bytes.fromhex(data))
        assert (event.WhichOneof("event"), event.new_message.sequence_num) == ("new_message", 1)
        assert (await in_json.next())[0] == "new_message"
    async with listening(alice, format="protobuf") as events:
        await alice.patch(group, alias="x")
        assert (await events.next())[0] == ""


async def test_a_stream_answers_at_once_with_its_headers(running: Running) -> None:
    alice = await running.user("alice")
    async with listening(alice) as events:
        headers = events.response.headers
        assert headers["Content-Type"] == "text/event-stream"
        assert (headers["Cache-Control"], headers["X-Accel-Buffering"]) == ("no-store", "no")


async def test_a_stream_ends_with_its_session_only(running: Running) -> None:
    alice = await running.user("alice")
    phone = Client(running.http, running.url)
    await phone.login("alice")
    group = await alice.create_group("friends")
    async with listening(alice) as ending, listening(phone) as going_on:
        await alice.post("/logout")
        await ending.ended()
        await phone.patch(group, alias="x")
        assert (await going_on.next())[0] == "group_update"


async def test_no_stream_begins_for_a_session_that_ended_after_its_token_was_looked_up(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await running.user("alice")
    events, read_format = running.app[app_keys.EVENTS], api_events._format

    def end_first(request: web.Request) -> Format:
        """A logout that comes about when the caller is known, and the stream is not there yet."""
        caller = request[tokens.CALLER]
        with contextlib.closing(connect(running.config.database)) as connection:
            sessions.remove(connection, caller.session_id)
        events.publish([events_module.SessionEnded(caller.user_id, caller.session_id)])
        return read_format(request)

    monkeypatch.setattr(api_events, "_format", end_first)
    async with asyncio.timeout(PATIENCE):
        await expect(alice.get("/events"), 401, 202)
    assert not events._streams


async def test_a_stream_whose_session_ends_while_it_begins_ends_at_once(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await running.user("alice")
    events, loop = running.app[app_keys.EVENTS], asyncio.get_running_loop()

    def found(connection: sqlite3.Connection, session_id: int, user_id: bytes) -> list[Redaction]:
        loop.call_soon_threadsafe(events.publish, [events_module.SessionEnded(user_id, session_id)])
        return []

    monkeypatch.setattr(timer_actions, "begin_stream", found)
    async with listening(alice) as stream:
        await stream.ended()
    assert not events._streams


async def test_what_was_heard_before_the_end_is_still_handed_on(running: Running) -> None:
    alice = await running.user("alice")
    events, user_id = running.app[app_keys.EVENTS], UUID(alice.user_id).bytes
    async with listening(alice) as stream:
        for number in range(3):
            events.publish([deleted(number, user_id)])
            await asyncio.sleep(0)
        (session_id,) = events.sessions()
        events.publish([events_module.SessionEnded(user_id, session_id)])
        await stream.ended()
        assert len(stream.waiting()) == 3


async def test_a_client_that_takes_nothing_costs_little_delays_nobody_and_cannot_outlive_its_session(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_connection, "LINGER_SECONDS", 0.1)
    alice = await running.user("alice")
    events, user_id = running.app[app_keys.EVENTS], UUID(alice.user_id).bytes
    async with deaf(alice):
        stream = await open_stream(events, alice)
        assert (transport := stream._transport)
        for batch in range(400):
            events.publish([deleted(batch, user_id)] * 100)
            await asyncio.sleep(0)
        assert len(stream._queue) == events_module.QUEUE_LIMIT
        assert transport.get_write_buffer_size() < 500_000
        await alice.get("/me")
        await alice.post("/logout")
        await until(lambda: not events._streams)


async def test_an_open_stream_is_a_use_of_its_session(running: Running) -> None:
    running.app[app_keys.EVENTS].wheel.seconds = 0.05
    alice = await running.user("alice")
    async with listening(alice):
        for _ in range(3):
            running.clock.advance(running.config.token_ttl_seconds - 1)
            await asyncio.sleep(0.2)
        assert (await alice.get("/me"))["username"] == "alice"


async def test_a_stream_that_writes_nothing_is_a_use_too(running: Running) -> None:
    alice = await running.user("alice")
    async with listening(alice):
        for _ in range(3):
            running.clock.advance(running.config.token_ttl_seconds - 1)
            running.app[app_keys.ACTIVITY].urgent.set()
            async with asyncio.timeout(PATIENCE):  # the use has to be stored before more time passes
                while await running.query("SELECT last_used_at FROM sessions") != [(running.clock.now(),)]:
                    await asyncio.sleep(0.02)
        assert (await alice.get("/me"))["username"] == "alice"


async def test_who_lags_is_told_once_and_before_the_next_event(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "QUEUE_LIMIT", 5)
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    async with listening(bob) as events:
        stream = await open_stream(running.app[app_keys.EVENTS], bob)
        stream.pause_writing()
        for number in range(8):
            running.app[app_keys.EVENTS].publish([deleted(number, stream.user_id)])
            await asyncio.sleep(0)
        stream.resume_writing()
        heard = [await events.next() for _ in range(6)]
        assert heard[0] == ("lagged", 3)
        assert [name for name, _ in heard[1:]] == ["group_deleted"] * 5


async def test_a_stop_ends_the_streams(running: Running) -> None:
    alice = await running.user("alice")
    async with listening(alice) as events:
        await running.app.shutdown()
        await events.ended()


async def test_a_bad_format_is_refused(running: Running) -> None:
    alice = await running.user("alice")
    await expect(alice.get("/events", format="xml"), 400, 101)
