"""Messages over HTTP: order, pages, watermarks."""

import asyncio
import contextlib
import socket
from typing import Any

import pytest

from conclave.store.resources import messages
from tests.conftest import Running
from tests.support.client import Client, encode, expect
from tests.support.server import PATIENCE


async def watermarks(running: Running) -> dict[Any, Any]:
    """Each member's watermark."""
    await running.settle()
    return dict(await running.query("SELECT username, watermark FROM members JOIN users USING (user_id)"))


async def group_of_two(running: Running) -> tuple[Client, Client, str]:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    return alice, bob, group


async def test_messages_come_in_order_with_sender_and_time(running: Running) -> None:
    alice, bob, group = await group_of_two(running)
    assert await alice.send(group, b"\x00first") == 1
    running.clock.advance(5)
    assert await bob.send(group, b"second") == 2
    first, second = await bob.fetch(group)
    assert (first.sequence_num, first.sender_id, first.body) == (1, alice.user_id, b"\x00first")
    assert (second.sequence_num, second.sender_id, second.body) == (2, bob.user_id, b"second")
    assert second.created_at == first.created_at + 5 == running.clock.now()


async def test_concurrent_senders_get_every_number_once(running: Running) -> None:
    alice, bob, group = await group_of_two(running)
    sent = await asyncio.gather(*(client.send(group, b"x") for client in (alice, bob) * 50))
    assert sorted(sent) == list(range(1, 101))
    assert [message.sequence_num for message in await bob.fetch(group)] == list(range(1, 101))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, range(1, 101)),
        ({"limit": "3"}, range(1, 4)),
        ({"limit": "9999999999999999999999"}, range(1, 501)),
        ({"after": "498", "limit": "2"}, (499, 500)),
        ({"after": "509"}, (510,)),
        ({"after": "510"}, ()),
        ({"after": "99999999999999999999999999"}, ()),
    ],
)
async def test_pages(running: Running, query: dict[str, str], expected: list[int]) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    await asyncio.gather(*(alice.send(group, b"x") for _ in range(510)))
    page = await alice.get(f"/groups/{group}/messages", **query)
    assert [message["sequence_num"] for message in page["messages"]] == list(expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", "0"),
        ("limit", "-1"),
        ("limit", "ten"),
        ("limit", ""),
        ("limit", "1_0"),
        ("after", "-1"),
        ("after", "1.0"),
        ("after", "\u0661"),
        ("after", "9" * 5000),
    ],
)
async def test_a_bad_page_is_refused(running: Running, name: str, value: str) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    answer = await expect(alice.get(f"/groups/{group}/messages", **{name: value}), 400, 101)
    assert list(answer["errors"]) == [name]


async def test_a_watermark_is_what_was_fetched_or_sent_and_never_goes_down(running: Running) -> None:
    alice, bob, group = await group_of_two(running)
    for _ in range(3):
        await alice.send(group)
    assert await watermarks(running) == {"alice": 3, "bob": 0}
    await bob.fetch(group, 0, 2)
    assert await watermarks(running) == {"alice": 3, "bob": 2}
    await bob.fetch(group, 0, 1)
    assert await watermarks(running) == {"alice": 3, "bob": 2}
    await bob.send(group)
    assert await watermarks(running) == {"alice": 3, "bob": 2}, "sending does not tell that 3 was seen"
    await bob.fetch(group, 2)
    await bob.send(group)
    assert await watermarks(running) == {"alice": 3, "bob": 5}


async def test_after_confirms_up_to_the_last_number_but_never_beyond(running: Running) -> None:
    alice, bob, group = await group_of_two(running)
    await alice.send(group)
    await alice.send(group)
    await bob.numbers(group, after=1000)
    assert await watermarks(running) == {"alice": 2, "bob": 2}
    await alice.send(group)
    assert await bob.numbers(group, after=2) == [3]


async def test_who_comes_back_starts_anew(running: Running) -> None:
    _, bob, group = await group_of_two(running)
    await bob.send(group)
    await bob.leave(group)
    await bob.join(group)
    assert (await watermarks(running))["bob"] == 0


async def test_a_connection_that_broke_before_the_body_was_written_moves_no_watermark(running: Running) -> None:
    alice, bob, group = await group_of_two(running)
    for _ in range(30):
        await alice.send(group, bytes(69_000))
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port, limit=2**16)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    writer.write(bob.raw_get(f"/groups/{group}/messages"))
    assert (await reader.read(16)).startswith(b"HTTP/1.1 200")
    await asyncio.sleep(0.3)
    assert (await watermarks(running))["bob"] == 0, "not while the client still has to take the rest"
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    await asyncio.sleep(0.3)
    assert (await watermarks(running))["bob"] == 0
    assert len(await bob.fetch(group)) == 30
    assert (await watermarks(running))["bob"] == 30


async def test_a_slow_client_moves_its_watermark_once_it_has_everything(running: Running) -> None:
    alice, bob, group = await group_of_two(running)
    for _ in range(30):
        await alice.send(group, bytes(69_000))
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port, limit=2**16)
    writer.write(bob.raw_get(f"/groups/{group}/messages"))
    headers = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(headers.split("content-length: ")[1].split("\r\n")[0])
    await asyncio.sleep(0.2)
    await alice.send(group, b"a slow reader does not keep others from writing")
    await reader.readexactly(length)
    writer.close()
    await writer.wait_closed()
    async with asyncio.timeout(PATIENCE):
        while (await watermarks(running))["bob"] != 30:
            await asyncio.sleep(0.02)


async def test_a_page_is_bounded_in_bytes_but_has_at_least_one_message(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "PAGE_BYTES", 1000)
    alice, bob, group = await group_of_two(running)
    for size in (400, 500, 200, 5000, 1):
        await alice.send(group, bytes(size))
    assert await bob.numbers(group) == [1, 2]
    assert (await watermarks(running))["bob"] == 2, "what was not served was not fetched"
    assert await bob.numbers(group, 2) == [3]
    assert await bob.numbers(group, 3) == [4]
    assert await bob.numbers(group, 4) == [5]


async def test_an_empty_message_is_refused(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    await expect(alice.send(group, b""), 400, 100)
    await expect(alice.post(f"/groups/{group}/messages"), 400, 100)
    await expect(alice.post(f"/groups/{group}/messages", mls_message="not base64!"), 400, 101)
    await expect(alice.post(f"/groups/{group}/messages", mls_message=encode(b"x").rstrip("=")), 400, 101)
    assert await alice.send(group) == 1


async def test_strangers_neither_send_nor_fetch(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    for request in (bob.send(group), bob.fetch(group), bob.get(f"/groups/{group}/retention"), bob.leave(group)):
        await expect(request, 401, 400)
    await expect(bob.fetch("00000000-0000-4000-8000-000000000000"), 401, 400)
