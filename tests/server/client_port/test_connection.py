"""What a connection takes and holds, and who is answered: clients that send little, or no more, or take nothing."""

import asyncio
import contextlib
import json
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from conclave import app_keys
from conclave.server.client_port import framing
from conclave.server.client_port.admission import FAST_PATH
from conclave.wire import pace
from tests.conftest import Running
from tests.server.client_port.test_fast_path import JSON, PROTOBUF, head, line_to, lock_of, poll, send, written
from tests.support.client import API, Client
from tests.support.server import PATIENCE, until

KIB = 1024
MANY = 50

HALF_HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X-Long: %b\r\n" % (b"a" * 7_000) * 2
SILENT = {
    "nothing": b"",
    "half a head": HALF_HEAD,
    "half a head of many headers": b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 2_500,
}


@contextlib.contextmanager
def traced_memory() -> Iterator[Callable[[], int]]:
    """Yield what tells how many bytes Python has taken since then."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@contextlib.asynccontextmanager
async def saying(running: Running, text: bytes, count: int) -> AsyncIterator[None]:
    """Have so many clients there that send the same text as far as they get rid of it, and then nothing."""
    lines = [await asyncio.open_connection("127.0.0.1", running.server.port) for _ in range(count)]
    try:
        for _, writer in lines:
            writer.write(text)
        yield
    finally:
        for _, writer in lines:
            writer.transport.abort()


@pytest.mark.parametrize("what", SILENT)
async def test_a_silent_connection_takes_at_most_64_kib(running: Running, what: str) -> None:
    before = set(running.server.site.open)
    with traced_memory() as traced:
        start = traced()
        async with saying(running, SILENT[what], MANY):
            await until(lambda: len(set(running.server.site.open) - before) == MANY)
            new = set(running.server.site.open) - before
            await until(lambda: all(len(each._buffered_data) == len(SILENT[what]) for each in new))
            more = traced() - start
    # The clients are in this process, too.
    assert more / MANY < 64 * KIB


async def test_who_sends_and_sends_behind_a_request_under_way_takes_little(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g")
    begun = send(alice, group, written(JSON, b"x"))
    before = set(running.server.site.open)
    with lock_of(running):
        async with saying(running, begun + poll(alice, group, 0) * 10_000, 10):
            await until(lambda: len(set(running.server.site.open) - before) == 10)
            new = set(running.server.site.open) - before
            await until(lambda: all(each._is_paused for each in new))
            assert all(len(each._buffered_data) <= 64 * KIB for each in new)
    await until(lambda: set(running.server.site.open) == before)


async def test_who_says_no_more_gets_the_answers_to_what_was_asked(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g")
    me = f"GET {API}/me HTTP/1.1\r\n{head(alice)}\r\n".encode()
    for asked, bodies in (
        (poll(alice, group, 0), [{"messages": []}]),
        (send(alice, group, written(JSON, b"x")), [{"sequence_num": 1}]),
        (send(alice, group, written(JSON, b"x")) + poll(alice, group, 2), [{"sequence_num": 2}, {"messages": []}]),
        (me + poll(alice, group, 2) + me, [None, {"messages": []}, None]),
        (poll(alice, group, 2) + b"GET /half", [{"messages": []}]),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
        writer.write(asked)
        writer.write_eof()
        answers = (await asyncio.wait_for(reader.read(), PATIENCE)).split(b"HTTP/1.1 200 OK")[1:]
        found = [json.loads(each.partition(b"\r\n\r\n")[2]) for each in answers]
        assert len(found) == len(bodies)
        assert all(expected in (None, body) for expected, body in zip(bodies, found, strict=True))
        writer.close()


@pytest.mark.parametrize("line", [": no name", f"X-Long: {'a' * 9_000}", "X-Return: a\rb"])
async def test_who_says_no_more_hears_that_the_head_was_none_though_no_body_came(running: Running, line: str) -> None:
    for body in ("Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n", ""):
        reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
        writer.write(f"POST {API}/login HTTP/1.1\r\nHost: x\r\n{line}\r\n{body}\r\n".encode())
        writer.write_eof()
        assert (await asyncio.wait_for(reader.read(), PATIENCE)).startswith(b"HTTP/1.1 400 ")
        writer.close()


@pytest.mark.parametrize("pause", [0.0, 0.05])
@pytest.mark.parametrize("framed", [b"Content-Length: 5\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"])
async def test_who_says_no_more_in_the_middle_of_a_body_is_not_waited_for(
    running: Running, framed: bytes, pause: float
) -> None:
    alice = await running.user("alice")
    before = set(running.server.site.open)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    writer.write(f"POST {API}/groups HTTP/1.1\r\n{head(alice)}Content-Type: {JSON}\r\n".encode() + framed)
    await asyncio.sleep(pause)
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
    await until(lambda: set(running.server.site.open) == before)
    writer.close()


async def with_one_unread(running: Running) -> tuple[Client, str]:
    """Somebody, and a group of which that one has fetched 1 and 2, and not "last", which is 3."""
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g")
    await bob.join(group)
    for number in range(2):
        await alice.send(group, b"%d" % number)
        await bob.fetch(group, number)
    await alice.send(group, b"last")
    return bob, group


@pytest.mark.parametrize("way", ["fast path", "aiohttp"])
async def test_who_says_no_more_gets_a_page_that_does_not_count_as_fetched(
    running: Running, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It may be gone: the system does not tell that from the end of one side."""
    bob, group = await with_one_unread(running)
    if way == "aiohttp":
        monkeypatch.setattr(running.app[app_keys.FETCHING], "read_cached", lambda *_, **__: None)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    writer.write(poll(bob, group, 2, PROTOBUF))
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"last" in answer
    writer.close()
    await running.settle()
    assert (await running.query("SELECT watermark FROM members ORDER BY member_id"))[1] == (2,)


@pytest.mark.parametrize("way", ["fast path", "aiohttp"])
async def test_a_page_for_a_connection_that_is_broken_does_not_count_as_fetched_though_nobody_has_read_that_yet(
    running: Running, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    bob, group = await with_one_unread(running)
    fetching = running.app[app_keys.FETCHING]
    read_cached, line = fetching.read_cached, socket.create_connection(("127.0.0.1", running.server.port))
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it breaks, and does not end
    asked = []

    def breaks(*arguments: Any, **more: Any) -> Any:
        asked.append(arguments)
        line.close()
        return read_cached(*arguments, **more) if way == "fast path" else None

    monkeypatch.setattr(fetching, "read_cached", breaks)
    before = set(running.server.site.open)
    page = poll(bob, group, 2, PROTOBUF)
    line.sendall(page + page[:20])  # what comes behind it has reading paused
    await until(lambda: asked)
    await until(lambda: set(running.server.site.open) <= before)
    monkeypatch.undo()
    await running.settle()
    assert (await running.query("SELECT watermark FROM members ORDER BY member_id"))[1] == (2,)


async def test_what_follows_a_body_that_comes_after_the_answer_of_an_upgrade_is_not_taken_for_it(
    running: Running,
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n"
    writer.write(b"GET /api/v1/nothing HTTP/1.1\r\nHost: x\r\n" + upgrade + b"\r\n")
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    assert b"Connection: close" in answer
    writer.write(b"hello" + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        assert b"HTTP/1.1" not in await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()


async def test_a_client_that_asks_for_more_than_it_takes_is_cut_off(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that take none of the memory for responses add up, too."""
    monkeypatch.setattr(pace, "WINDOW_SECONDS", 0.3)
    alice = await running.user("alice")
    group = await alice.create_group("g")
    await alice.send(group, bytes(40_000))
    await alice.fetch(group)
    before = set(running.server.site.open)
    async with line_to(running.server.port, limit=1024, buffer=4096) as line:
        await line.say(poll(alice, group, 0, PROTOBUF) * 1_000)
        await until(lambda: bool(set(running.server.site.open) - before))
        await until(lambda: set(running.server.site.open) == before)
    assert running.app[app_keys.BUDGET].used == 0


async def test_a_stop_tells_that_the_connection_ends(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g")
    async with line_to(running.server.port) as line:
        await line.ask(poll(alice, group, 0))
        with lock_of(running):
            await line.say(send(alice, group, written(JSON, b"x")))
            await until(lambda: any(each.state == FAST_PATH for each in running.server.site.open))
            stopping = asyncio.create_task(running.server.close())
            await until(lambda: running.server.site._state.is_stopping)
        assert (await line.hear()).headers["connection"] == "close"
        await stopping


async def test_a_large_body_in_many_pieces_comes_whole(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g")
    body = bytes(range(256)) * 3_000
    text = send(alice, group, written(PROTOBUF, body), PROTOBUF)
    async with line_to(running.server.port) as line:
        await line.ask(*(text[each : each + 100_000] for each in range(0, len(text), 100_000)))
    assert [each.body for each in await alice.fetch(group)] == [body]
    assert len(text) > framing.MAX_HEAD_BYTES
