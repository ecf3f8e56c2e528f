"""Responses under way: the memory that they share, and who takes them slowly."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conclave import app_keys
from conclave.api import key_packages
from conclave.config.limits import LimitsConfig
from conclave.config.settings import Config
from conclave.store.resources import messages
from conclave.wire import pace
from tests.conftest import Running, StartServer
from tests.support.client import PACKAGE, Client, encode
from tests.support.protobuf import ProtobufClient
from tests.support.server import PATIENCE, until
from tests.support.slow import raw

KIB = 1024


def used(running: Running) -> int:
    return running.app[app_keys.BUDGET].used


async def trickle(reader: asyncio.StreamReader) -> None:
    """Read 40 KB/s, until the connection ends."""
    async with asyncio.timeout(PATIENCE):
        while True:
            await reader.readexactly(2000)
            await asyncio.sleep(0.05)


async def filled(running: Running, kind: type[Client] = Client, count: int = 30, size: int = 100 * KIB) -> Any:
    """Return a client, a group, and the bodies of its messages."""
    alice = await kind.register(running.http, running.url, "alice")
    group = await alice.create_group("friends", expiry=0)
    chance = random.Random(size)
    bodies = [chance.randbytes(chance.randrange(1, size)) for _ in range(count)]
    for body in bodies:
        await alice.send(group, body)
    await running.app[app_keys.STORE].write(lambda connection: connection.execute("UPDATE members SET watermark = 0"))
    return alice, group, bodies


async def fetched(client: Client, group: str) -> list[bytes]:
    return [message.body for message in await client.fetch_all(group)]


@contextlib.contextmanager
def held(running: Running, part: float) -> Iterator[list[str]]:
    """Have a slow response of a stranger hold a part of the memory. Yield what becomes of it."""
    memory, told = running.app[app_keys.BUDGET], list[str]()
    size = int(part * memory.size)
    with memory.waiting(None, size, size, lambda: size, lambda: told.append("cut off")):
        yield told


async def watermark(running: Running) -> int:
    return int((await running.query("SELECT watermark FROM members"))[0][0])


@pytest.mark.parametrize("kind", [Client, ProtobufClient])
async def test_very_many_key_packages_are_the_same_answer(
    running: Running, kind: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = [await kind.register(running.http, running.url, name) for name in ("alice", "bob")]
    await bob.upload(last_resort=PACKAGE)
    group, answers = await alice.create_group("friends"), []
    for few in (1, 0):
        monkeypatch.setattr(key_packages, "SMALL_INVITE", few)
        answers.append(await alice.post(f"/groups/{group}/invite", user_ids=[bob.user_id]))
    assert answers[0] == answers[1]
    assert [each["user_id"] for each in answers[0]["member_key_packages"]] == [bob.user_id]


async def test_the_head_of_a_document_has_its_length(running: Running) -> None:
    lengths = []
    for method in ("HEAD", "GET"):
        async with running.http.request(method, f"{running.url}/api/v1/openapi.json") as response:
            lengths.append(int(response.headers["Content-Length"]))
            assert len(await response.read()) == (lengths[0] if method == "GET" else 0)
    assert lengths[0] == lengths[1] > 64 * KIB
    await running.settle()
    assert used(running) == 0


async def test_where_no_memory_is_left_all_are_answered_and_the_slowest_response_is_cut_off(running: Running) -> None:
    alice, group, bodies = await filled(running, count=3)
    bob = await running.user("bob")
    await bob.upload(PACKAGE)
    await alice.post(f"/groups/{group}/commit", group_info=encode(bytes(100 * KIB)))
    requests: list[Callable[[], Awaitable[Any]]] = [
        *(lambda: alice.fetch(group), lambda: alice.group_info(group), lambda: alice.call("GET", "/openapi.json")),
        lambda: alice.post(f"/groups/{group}/invite", user_ids=[bob.user_id]),
    ]
    for request in requests:
        await running.settle()  # else it may cut off the answer before it, and the connection of both
        with held(running, 1.0) as told:
            assert await request()
        assert len(told) <= 1
    with held(running, 1.0) as told:
        async with raw(running, alice.raw_get(f"/groups/{group}/group-info")) as (reader, _):
            assert await reader.readexactly(15) == b"HTTP/1.1 200 OK"
        assert told == ["cut off"]
    assert len(await alice.fetch(group)) == len(bodies)
    await running.settle()
    assert used(running) == 0


async def test_one_account_has_an_eighth_of_the_memory_and_beyond_it_cuts_off_itself(
    config: Config, start_server: StartServer
) -> None:
    small = Config(database_path=config.database_path, limits=LimitsConfig(response_memory="32m"))
    async with start_server(small) as running, contextlib.AsyncExitStack() as stack:
        alice, group, bodies = await filled(running, size=120 * KIB)
        bob = await running.user("bob")
        await bob.join(group)
        memory = running.app[app_keys.BUDGET]
        for _ in range(12):
            reader, _ = await stack.enter_async_context(raw(running, alice.raw_get(f"/groups/{group}/messages")))
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await reader.readexactly(15)
            assert used(running) <= memory.size / 8
        assert memory.cut_off["account"] > 0
        assert await fetched(bob, group) == bodies
        assert memory.cut_off["memory"] == 0
    assert memory.used == 0


@pytest.mark.parametrize("kind", [Client, ProtobufClient])
async def test_a_page_has_at_most_two_mebibytes_of_bodies_and_none_is_missing(
    running: Running, kind: type[Client]
) -> None:
    alice, group, bodies = await filled(running, kind, size=300 * KIB)
    seen: list[bytes] = []
    while page := await alice.fetch(group, len(seen), 500):
        assert [message.sequence_num for message in page] == list(range(len(seen) + 1, len(seen) + len(page) + 1))
        total = sum(len(message.body) for message in page)
        seen += [message.body for message in page]
        following = bodies[len(seen) : len(seen) + 1]
        assert total <= messages.PAGE_BYTES < total + sum(map(len, following or [bytes(messages.PAGE_BYTES)]))
    assert seen == bodies
    await running.settle()
    assert used(running) == 0
    assert await watermark(running) == len(bodies)


@pytest.mark.system
async def test_who_takes_a_large_page_too_slowly_is_cut_off_and_has_fetched_nothing(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, group, bodies = await filled(running, size=400 * KIB)
    monkeypatch.setattr(pace, "WINDOW_SECONDS", 0.5)
    monkeypatch.setattr(pace, "MIN_RATE", 1000 * KIB)
    async with raw(running, alice.raw_get(f"/groups/{group}/messages")) as (reader, _):
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await trickle(reader)
    await until(lambda: used(running) == 0)
    assert await watermark(running) == 0
    assert await fetched(alice, group) == bodies
    await running.settle()
    assert await watermark(running) == len(bodies)


@pytest.mark.system
async def test_who_is_slow_but_not_too_slow_gets_everything_and_only_then_has_fetched_it(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, group, _ = await filled(running, size=200 * KIB)
    monkeypatch.setattr(pace, "WINDOW_SECONDS", 1.5)  # half of what it takes; a busy machine may stand still
    monkeypatch.setattr(pace, "MIN_RATE", 100 * KIB)
    async with raw(running, alice.raw_get(f"/groups/{group}/messages")) as (reader, _):
        headers = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        left = int(headers.split("content-length: ")[1].split("\r\n")[0])
        assert left > 1500 * KIB
        page = b""
        while left:
            if left > 1000 * KIB:
                assert await watermark(running) == 0
                assert used(running) > 0
            page += (part := await reader.readexactly(min(left, 100 * KIB)))
            left -= len(part)
            await asyncio.sleep(0.1)
        await until(lambda: used(running) == 0)
        async with asyncio.timeout(PATIENCE):
            while await watermark(running) != page.count(b"sequence_num"):
                await asyncio.sleep(0.02)


async def test_the_rest_of_a_page_may_come_as_slowly_as_it_likes_while_it_comes(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, group, _ = await filled(running, size=40 * KIB)
    monkeypatch.setattr(pace, "WINDOW_SECONDS", 0.8)  # as above
    monkeypatch.setattr(pace, "SMALL_BYTES", 2000 * KIB)
    monkeypatch.setattr(pace, "MIN_RATE", 10_000 * KIB)
    async with raw(running, alice.raw_get(f"/groups/{group}/messages")) as (reader, _):
        headers = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        left = int(headers.split("content-length: ")[1].split("\r\n")[0])
        while left:
            left -= len(await reader.readexactly(min(left, 40 * KIB)))
            await asyncio.sleep(0.1)
        await until(lambda: used(running) == 0)


@pytest.mark.parametrize("path", ["/groups/{group}/messages", "/groups/{group}/group-info"])
async def test_who_takes_nothing_is_cut_off_also_with_many_requests_on_one_connection(
    running: Running, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    alice, group, _ = await filled(running, size=300 * KIB)
    await alice.post(f"/groups/{group}/commit", group_info="A" * 1_000_000)
    monkeypatch.setattr(pace, "WINDOW_SECONDS", 0.3)
    most = 0
    async with raw(running, alice.raw_get(path.format(group=group)) * 20):
        await until(lambda: used(running) > 0)
        async with asyncio.timeout(PATIENCE):
            while used(running):
                most = max(most, used(running))
                await asyncio.sleep(0.01)
    assert most < 10_000 * KIB, "one response at a time"


async def test_who_asks_again_and_again_for_little_and_takes_nothing_is_cut_off(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await running.user("alice")
    for number in range(60):
        await alice.create_group(f"g{number}")
    monkeypatch.setattr(pace, "WINDOW_SECONDS", 0.3)
    assert running.server.runner
    assert running.server.runner.server
    connections = running.server.runner.server
    others = set(connections.connections)
    async with raw(running, alice.raw_get("/groups/public") * 500) as (reader, _):
        await until(lambda: set(connections.connections) - others)
        await until(lambda: not set(connections.connections) - others)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(500 * 8 * KIB)
    assert used(running) == 0


@pytest.mark.parametrize("path", ["/docs/swagger-ui-bundle.js", "/openapi.json"])
async def test_strangers_who_take_nothing_hold_no_open_file_and_little_memory_and_are_cut_off(
    running: Running, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Open files beyond the connections are reserved for the server itself."""
    assert running.server.runner
    assert running.server.runner.server
    connections = running.server.runner.server
    others = set(connections.connections)
    asked = f"GET /api/v1{path} HTTP/1.1\r\nhost: x\r\n\r\n".encode() * 30
    async with raw(running, asked):
        await until(lambda: any(each.writing_paused for each in set(connections.connections) - others))
        assert not [each for each in _open_files() if "swagger" in each]
        assert used(running) <= 64 * KIB
        monkeypatch.setattr(pace, "WINDOW_SECONDS", 0.3)
    await until(lambda: not set(connections.connections) - others)
    async with raw(running, asked) as (reader, _):
        await until(lambda: set(connections.connections) - others)
        await until(lambda: not set(connections.connections) - others)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(30 * 1600 * KIB)


def _open_files() -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found.append(str(link.readlink()))
    return found


async def test_little_waits_behind_an_answer_that_is_not_taken_and_all_is_answered_in_the_end(running: Running) -> None:
    """Anybody may send one request behind the other."""
    alice, group, bodies = await filled(running)
    before = set(running.server.site.open)
    behind = f"GET /healthz HTTP/1.1\r\nhost: x\r\nx-long: {'a' * 8000}\r\n\r\n".encode()
    async with raw(running, alice.raw_get(f"/groups/{group}/messages") + behind * 100) as (reader, _):
        await until(lambda: used(running) > 0)
        [connection] = set(running.server.site.open) - before
        await until(lambda: connection._is_paused)
        assert 0 < len(connection._buffered_data) <= 32 * KIB
        answered = bytearray()
        async with asyncio.timeout(PATIENCE):
            while answered.count(b'{"status":"ok"}') < 100:
                answered += await reader.read(2**16)
        assert answered.count(b"HTTP/1.1 200 OK") == 101
        assert answered.count(b"sequence_num") == len(bodies)


async def test_a_connection_that_breaks_gives_the_memory_back(running: Running) -> None:
    alice, group, _ = await filled(running, size=400 * KIB)
    for _ in range(5):
        async with raw(running, alice.raw_get(f"/groups/{group}/messages")) as (reader, _):
            await reader.readexactly(16)
            await until(lambda: used(running) > 0)
        await until(lambda: used(running) == 0)
