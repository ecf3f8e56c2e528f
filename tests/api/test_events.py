"""Events over a real stream: exactly the documented recipients hear them, on all their streams."""

import asyncio
import contextlib
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import TypeVar
from uuid import UUID

import pytest
from aiohttp import web

from conclave import auth, events as events_module, keys
from conclave.api import events as api_events
from conclave.store import sessions
from conclave.store.database import connect
from conclave.wire import sse
from conclave.wire.conclave_pb2 import ServerEvent
from conclave.wire.negotiate import Format
from tests.client import Client, encode, expect
from tests.conftest import Running
from tests.listening import Heard, Listener, listening
from tests.protobuf import ProtobufClient

T = TypeVar("T")


async def heard_by(streams: list[Listener]) -> list[list[Heard]]:
    """What each stream has heard, once all that was published has arrived."""
    await asyncio.sleep(0.1)
    return [stream.waiting() for stream in streams]


def deleted(number: int, *recipients: bytes) -> events_module.Announcement:
    event = events_module.Event("group_deleted", {"group_id": number.to_bytes(16)})
    return events_module.Announcement(frozenset(recipients), event)


async def until(condition: Callable[[], T]) -> T:
    """Wait until ``condition`` returns something that counts as true, and return it."""
    async with asyncio.timeout(10):
        while not (found := condition()):
            await asyncio.sleep(0.01)
    return found


@contextlib.asynccontextmanager
async def deaf(client: Client) -> AsyncIterator[asyncio.StreamWriter]:
    """Open a stream with small buffers, of which nothing is read."""
    bare = socket.socket()
    bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    bare.connect(("127.0.0.1", int(client.url.rpartition(":")[2])))
    _, writer = await asyncio.open_connection(sock=bare, limit=16)
    writer.write(client.raw_get("/events"))
    try:
        yield writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def transport_to(running: Running, writer: asyncio.StreamWriter) -> asyncio.Transport:
    """The server's end of a connection."""
    assert running.server.runner
    assert running.server.runner.server
    ends = [each.transport for each in running.server.runner.server.connections if each.transport]
    return next(each for each in ends if each.get_extra_info("peername") == writer.get_extra_info("sockname"))


async def test_each_event_reaches_its_recipients_on_all_their_streams_and_nobody_else(running: Running) -> None:
    alice, bob, carol, eve = await running.users("alice", "bob", "carol", "eve")
    phone = Client(running.http, running.url, user_id=bob.user_id)
    await phone.login("bob")
    group = await alice.create_group("friends")
    for member in (bob, carol):
        await member.join(group)
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(listening(each)) for each in (alice, bob, phone, carol, eve)]

        await alice.send(group)
        event = ("new_message", {"group_id": group, "sequence_num": 1, "sender_id": alice.user_id})
        assert await heard_by(streams) == [[], [event], [event], [event], []], "members but the sender"

        await bob.post(f"/groups/{group}/commit", commit_message=encode(b"c"))
        event = ("group_update", {"group_id": group, "update_type": "commit"})
        assert await heard_by(streams) == [[event], [], [], [event], []], "members but the sender"
        await bob.post(f"/groups/{group}/commit", group_info=encode(b"i"))
        assert await heard_by(streams) == [[]] * 5, "no commit, no event"

        await alice.patch(group, alias="x")
        event = ("group_update", {"group_id": group, "update_type": "group_settings"})
        assert await heard_by(streams) == [[event]] * 4 + [[]], "all members, the sender included"
        await expect(alice.patch(group, group_name="_"), 400, 101)
        assert await heard_by(streams) == [[]] * 5, "nothing changed, nobody hears"

        await alice.leave(group)
        removed = ("member_removed", {"group_id": group, "removed_user_id": alice.user_id})
        role = ("group_update", {"group_id": group, "update_type": "role_change"})
        assert await heard_by(streams) == [[]] + [[removed, role]] * 3 + [[]], "those who remain; bob is admin now"

        await bob.post(f"/groups/{group}/delete")
        event = ("group_deleted", {"group_id": group})
        assert await heard_by(streams) == [[]] + [[event]] * 3 + [[]], "all former members, the caller included"


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
    events, read_format = running.app[keys.EVENTS], api_events._format

    def end_first(request: web.Request) -> Format:
        """A logout that comes about when the caller is known, and the stream is not there yet."""
        caller = request[auth.CALLER]
        with contextlib.closing(connect(running.config.database)) as connection:
            sessions.remove(connection, caller.user_id, caller.session_id)
        events.publish([events_module.Ending(caller.user_id, caller.session_id)])
        return read_format(request)

    monkeypatch.setattr(api_events, "_format", end_first)
    async with asyncio.timeout(10):
        await expect(alice.get("/events"), 401, 202)
    assert not events._streams


async def test_a_stream_whose_session_ends_while_it_begins_ends_at_once(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await running.user("alice")
    events, loop = running.app[keys.EVENTS], asyncio.get_running_loop()

    def found(connection: sqlite3.Connection, session_id: int) -> bool:
        loop.call_soon_threadsafe(events.publish, [events_module.Ending(UUID(alice.user_id).bytes, session_id)])
        return True

    monkeypatch.setattr(sessions, "exists", found)
    async with listening(alice) as stream:
        await stream.ended()
    assert not events._streams


async def test_what_was_heard_before_the_end_is_still_handed_on(running: Running) -> None:
    alice = await running.user("alice")
    events, user_id = running.app[keys.EVENTS], UUID(alice.user_id).bytes
    async with listening(alice) as stream:
        for number in range(3):
            events.publish([deleted(number, user_id)])
            await asyncio.sleep(0)
        (session_id,) = events.sessions()
        events.publish([events_module.Ending(user_id, session_id)])
        await stream.ended()
        assert len(stream.waiting()) == 3


async def test_a_client_that_takes_nothing_costs_little_delays_nobody_and_cannot_outlive_its_session(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "LAST_SECONDS", 0.1)
    alice = await running.user("alice")
    events, user_id = running.app[keys.EVENTS], UUID(alice.user_id).bytes
    async with deaf(alice) as writer:
        [[stream]] = await until(lambda: [each for each in events._streams.values() if each])
        transport = transport_to(running, writer)
        for batch in range(400):
            events.publish([deleted(batch, user_id)] * 100)
            await asyncio.sleep(0)
        assert len(stream._waiting) == events_module.QUEUE_LIMIT
        assert transport.get_write_buffer_size() < 500_000
        await alice.get("/me")
        await alice.post("/logout")
        await until(lambda: not events._streams)


async def test_an_open_stream_is_a_use_of_its_session(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_events, "KEEP_ALIVE_SECONDS", 0.05)
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
            running.app[keys.ACTIVITY].urgent.set()
            await asyncio.sleep(0.1)
        assert (await alice.get("/me"))["username"] == "alice"


async def test_who_lags_is_told_once_and_before_the_next_event(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "QUEUE_LIMIT", 5)
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    async with listening(bob) as events:
        stream = next(iter(running.app[keys.EVENTS]._streams.values()))
        for number in range(8):
            for each in stream:
                each.put(events_module.Event("group_deleted", {"group_id": number.to_bytes(16)}))
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
