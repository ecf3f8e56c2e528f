"""Streams as bytes on their connections, which are no longer aiohttp's."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from conclave import app_keys, events as events_module
from conclave.events import SessionEnded
from conclave.wire import stream_connection
from conclave.wire.conclave_pb2 import ServerEvent
from tests.conftest import Running
from tests.support.client import API, Client
from tests.support.listening import deaf, deleted, listening, open_stream
from tests.support.server import PATIENCE, until

CHUNK = re.compile(rb"([0-9a-f]+)\r\n")
KEEP_ALIVE = b": keep-alive\n\n"


class Ear:
    """A stream read off a bare socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.head = b""

    async def begin(self) -> None:
        self.head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)

    async def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        return await asyncio.wait_for(self.reader.read(), PATIENCE)


@contextlib.asynccontextmanager
async def ear(
    client: Client, *, path: str = "/events", version: bytes = b"1.1", more: bytes = b""
) -> AsyncIterator[Ear]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(client.url.rpartition(":")[2]))
    writer.write(client.raw_get(path).replace(b"HTTP/1.1", b"HTTP/" + version) + more)
    found = Ear(reader, writer)
    try:
        await found.begin()
        yield found
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def joined(chunks: bytes) -> bytes:
    """Return what is in chunks, each of which has to be whole; without the last one if the stream has ended."""
    found = b""
    while chunks:
        size = CHUNK.match(chunks)
        assert size, chunks[:50]
        end = size.end() + int(size[1], 16)
        found += chunks[size.end() : end]
        assert chunks[end : end + 2] == b"\r\n"
        chunks = chunks[end + 2 :]
    return found


def numbers(text: bytes) -> list[int]:
    """Return the numbers of the ``deleted`` groups, and the number that were lost, as a negative one."""
    found = []
    for each in text.split(b"\n\n"):
        name, _, data = each.partition(b"\ndata: ")
        if name == b"event: lagged":
            found.append(-int(data))
        elif name == b"event: group_deleted":
            found.append(UUID(json.loads(data)["group_id"]).int)
        elif each.startswith(b"data: "):
            event = ServerEvent.FromString(bytes.fromhex(each[6:].decode()))
            found.append(int.from_bytes(event.group_deleted.group_id))
    return found


async def test_listeners_of_every_kind_hear_each_event_once_and_in_order(running: Running) -> None:
    alice = await running.user("alice")
    events, user_id = running.app[app_keys.EVENTS], UUID(alice.user_id).bytes
    async with (
        ear(alice) as in_json,
        ear(alice, path="/events?format=protobuf") as in_protobuf,
        ear(alice, version=b"1.0") as unchunked,
        ear(alice, path="/events?format=protobuf", version=b"1.0") as both,
    ):
        await until(lambda: len(events._streams[user_id]) == 4)
        for number in range(300):
            events.publish([deleted(number, user_id)])
            if number % 7 == 0:
                await asyncio.sleep(0)
        await alice.post("/logout")
        for chunked in (in_json, in_protobuf):
            text = await chunked.rest()
            assert text.endswith(b"\r\n0\r\n\r\n")
            assert numbers(joined(text.removesuffix(b"0\r\n\r\n"))) == list(range(300))
        for plain in (unchunked, both):
            text = await plain.rest()
            assert text.startswith(KEEP_ALIVE)
            assert numbers(text) == list(range(300))


async def test_a_connection_ends_with_its_stream_and_answers_nothing_else(running: Running) -> None:
    alice = await running.user("alice")
    async with ear(alice, more=alice.raw_get("/me")) as listening:
        assert b"\r\nConnection: close\r\n" in listening.head
        await open_stream(running.app[app_keys.EVENTS], alice)
        listening.writer.write(alice.raw_get("/me") + b"what is not HTTP")
        await alice.get("/me")
        await alice.post("/logout")
        assert joined((await listening.rest()).removesuffix(b"0\r\n\r\n")) == KEEP_ALIVE


async def test_a_stream_can_follow_other_requests_on_its_connection(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g")
    for _ in range(4):
        await alice.send(group, bytes(500_000))
    async with ear(alice, path=f"/groups/{group}/messages", more=alice.raw_get("/events")) as listening:
        length = re.search(rb"Content-Length: (\d+)", listening.head)
        assert length
        await asyncio.wait_for(listening.reader.readexactly(int(length[1])), PATIENCE)
        await listening.begin()
        assert b"text/event-stream" in listening.head
        await open_stream(running.app[app_keys.EVENTS], alice)
        await alice.patch(group, alias="x")
        await asyncio.wait_for(listening.reader.readuntil(b"event: group_update"), PATIENCE)


async def test_a_client_that_goes_is_forgotten_by_everybody(running: Running) -> None:
    alice = await running.user("alice")
    events = running.app[app_keys.EVENTS]
    assert running.server.runner
    assert running.server.runner.server
    async with ear(alice):
        stream = await open_stream(events, alice)
    await until(lambda: not events._streams)
    stream.flush()
    stream.keep_alive()
    stream.break_off()
    await alice.post("/logout")
    open_still = [each.transport for each in running.server.runner.server.connections]
    assert len(open_still) == 1, "that of the client itself"


@pytest.mark.system
async def test_a_slow_listener_learns_what_it_lost_and_the_quick_ones_lose_nothing(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "QUEUE_LIMIT", 100)
    alice = await running.user("alice")
    events, user_id = running.app[app_keys.EVENTS], UUID(alice.user_id).bytes
    async with deaf(alice) as slow:
        stream = await open_stream(events, alice)
        async with listening(alice) as quick:
            count = 0
            while stream._lost_count < 50:
                events.publish([deleted(count, user_id)])
                count += 1
                await asyncio.sleep(0)
            for number in range(count):
                assert (await quick.next())[1]["group_id"] == str(UUID(int=number))
        last = f'"{UUID(int=count - 1)}"'.encode()
        heard = b""
        async with asyncio.timeout(PATIENCE):
            while not (last in heard and heard.endswith(b"\n\n\r\n")):
                heard += await slow.read(65536)
    told = numbers(joined(heard.partition(b"\r\n\r\n")[2]))
    [lost] = [-each for each in told if each < 0]
    before = told.index(-lost)
    assert told[:before] == list(range(before))
    assert told[before + 1 :] == list(range(before + lost, count)), "the newest are there"
    assert len(told) - 1 + lost == count


async def test_sessions_that_end_between_two_slices_have_heard_what_came_before(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "SLICE", 1)
    alice = await running.user("alice")
    events, user_id = running.app[app_keys.EVENTS], UUID(alice.user_id).bytes
    phones = [await alice.another("alice") for _ in range(5)]
    async with contextlib.AsyncExitStack() as streams:
        ears = [await streams.enter_async_context(ear(each)) for each in phones]
        await until(lambda: len(events._streams[user_id]) == len(phones))
        for number in range(3):
            events.publish([deleted(number, user_id)])
        await asyncio.sleep(0)
        events.publish([deleted(3, user_id)] + [SessionEnded(user_id, session_id) for session_id in events.sessions()])
        events.publish([deleted(4, user_id)])
        for each in ears:
            assert numbers(joined((await each.rest()).removesuffix(b"0\r\n\r\n"))) == [0, 1, 2, 3]


async def test_a_stop_hands_on_the_last_events_and_waits_little_for_who_takes_nothing(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_connection, "LINGER_SECONDS", 0.1)
    alice, bob = await running.users("alice", "bob")
    events, user_ids = running.app[app_keys.EVENTS], [UUID(each.user_id).bytes for each in (alice, bob)]
    async with contextlib.AsyncExitStack() as streams:
        await streams.enter_async_context(deaf(bob))
        slow = await open_stream(events, bob)
        count = 0
        while not slow._lost_count:
            events.publish([deleted(count, user_ids[1])] * 50)
            count += 1
            await asyncio.sleep(0)
        ears = [await streams.enter_async_context(ear(alice)) for _ in range(2 * events_module.SLICE)]
        await until(lambda: len(events._streams[user_ids[0]]) == len(ears))
        events.publish([deleted(7, *user_ids)])
        await running.app.shutdown()
        for each in ears:
            assert numbers(joined((await each.rest()).removesuffix(b"0\r\n\r\n"))) == [7]
        await asyncio.wait_for(events.wait_ended(), PATIENCE)
        assert not events._streams


async def test_idle_streams_get_keep_alives_and_those_who_take_nothing_do_not(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    events = running.app[app_keys.EVENTS]
    async with ear(alice) as first, ear(alice) as second, deaf(bob):
        (slow := await open_stream(events, bob)).pause_writing()
        assert slow._transport
        waiting = slow._transport.get_write_buffer_size()
        events.wheel.seconds = 0.05
        for each in (first, second):
            async with asyncio.timeout(PATIENCE):
                assert joined(await each.reader.readexactly(5 * len(b"e\r\n" + KEEP_ALIVE + b"\r\n"))) == 5 * KEEP_ALIVE
        assert slow._transport.get_write_buffer_size() == waiting


async def test_a_head_request_is_not_answered_with_a_stream(running: Running) -> None:
    alice = await running.user("alice")
    headers = {"Authorization": f"Bearer {alice.token}"}
    async with running.http.head(f"{running.url}{API}/events", headers=headers) as response:
        assert response.status == 405
    assert not running.app[app_keys.EVENTS]._streams
