"""What happens while a request waits: nothing that is hidden meanwhile is sent, and nothing goes wrong for others."""

import asyncio
import re
import sqlite3
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from conclave import app_keys
from conclave.store import invalidation
from conclave.store.engine.faults import StoreError
from conclave.store.resources import members
from conclave.wire.formats import Format
from tests.conftest import Running
from tests.support.alone import once
from tests.support.client import Client
from tests.support.server import PATIENCE, until
from tests.support.world import outcome


async def remembered(running: Running) -> tuple[Client, Client, str]:
    """Two members of a group with messages that the server remembers."""
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends", expiry=100)
    await bob.join(group)
    for _ in range(3):
        await alice.send(group)
    assert await bob.numbers(group) == await alice.numbers(group) == [1, 2, 3]
    await running.settle()
    return alice, bob, group


async def exchanged(running: Running, *requests: bytes) -> bytes:
    """Return what one connection gets for requests that are sent together, the last of which ends it."""
    reader, writer = await asyncio.open_connection(running.server.host, running.server.port)
    writer.write(b"".join(requests) + b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(PATIENCE):
        got = await reader.read()
    writer.close()
    return got


async def test_a_page_whose_confirmation_fails_was_sent_once_and_is_confirmed_the_next_time(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    await alice.send(group)
    failures = [StoreError("the disk")] * 2
    confirm = members.confirm_fetched

    def fail_first(connection: sqlite3.Connection, fetched: Any) -> Any:
        if failures:
            raise failures.pop()
        return confirm(connection, fetched)

    monkeypatch.setattr(members, "confirm_fetched", fail_first)
    got = await exchanged(running, *[bob.raw_get(f"/groups/{group}/messages")] * 2)
    assert re.findall(rb"HTTP/1.1 (\d+) ", got) == [b"200"] * 3, "no answer says what failed after it"
    assert not failures
    marks = "SELECT watermark FROM members JOIN users USING (user_id) WHERE username = 'bob'"
    assert await running.query(marks) == [(0,)]
    await bob.fetch(group)
    await running.settle()
    assert await running.query(marks) == [(1,)]


async def test_a_session_that_is_extended_while_it_is_read_lives_as_long_as_it_was_extended(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await running.user("alice")
    ttl, activity = running.config.token_ttl_seconds, running.app[app_keys.ACTIVITY]
    running.clock.advance(1000)
    read = running.app[app_keys.STORE].read

    async def read_and_wait(fn: Any, *args: Any) -> Any:
        result = await read(fn, *args)
        if fn is invalidation.with_invalidation and not activity.unstored():
            activity.extend(result[1].session_id, running.clock.now())  # as a stream of it does
            activity.urgent.set()
            while activity.unstored():
                await asyncio.sleep(0.001)
        return result

    monkeypatch.setattr(running.app[app_keys.STORE], "read", read_and_wait)
    await alice.get("/me")
    running.clock.advance(ttl - 1)
    await alice.get("/me")
    running.clock.advance(ttl)
    assert await outcome(alice.get("/me")) == (401, 202)


async def test_a_fetch_that_is_given_up_leaves_what_is_remembered_right(running: Running) -> None:
    alice, bob, group = await remembered(running)
    once(running.config.database, "INSERT INTO touches (group_key, session_id) VALUES (NULL, NULL)")
    fetching = running.app[app_keys.FETCHING]
    for rounds in range(12):
        task = asyncio.create_task(fetching.page(UUID(group).bytes, UUID(bob.user_id).bytes, 0, 500, Format.JSON))
        for _ in range(rounds):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        number = await alice.send(group)
        assert await bob.numbers(group) == list(range(1, number + 1))
    await running.settle()
    assert running.app[app_keys.BUDGET].used == 0


async def test_a_request_that_is_given_up_while_it_confirms_moves_the_watermark(running: Running) -> None:
    alice, bob, group = await remembered(running)
    await alice.send(group)
    fetching = running.app[app_keys.FETCHING]
    page = await fetching.page(UUID(group).bytes, UUID(bob.user_id).bytes, 0, 500, Format.JSON)
    task = asyncio.create_task(fetching.confirm(page, has_arrived=True))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert page.reader.watermark == 3, "nobody knows yet"
    again = await fetching.page(UUID(group).bytes, UUID(bob.user_id).bytes, 4, 500, Format.JSON)
    await fetching.confirm(again, has_arrived=True)
    assert page.reader.watermark == 4
    assert await running.query("SELECT min(watermark) FROM members") == [(4,)]


def noted(order: list[str], name: str, do: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return what does the same and is noted."""

    def note(news: Any) -> None:
        order.append(name)
        do(news)

    return note


async def test_who_hears_of_a_message_finds_it(running: Running) -> None:
    """Memory is told before the streams."""
    alice, bob, group = await remembered(running)
    order: list[str] = []
    memory, events = running.app[app_keys.GROUPS], running.app[app_keys.EVENTS]
    with pytest.MonkeyPatch.context() as patch:
        for name, told in (("add_news", memory), ("publish", events)):
            patch.setattr(told, name, noted(order, name, getattr(told, name)))
        await alice.send(group)
    assert order[:2] == ["add_news", "publish"]
    assert await bob.numbers(group, 3) == [4]


async def test_what_one_reader_has_seen_no_other_misses_although_the_writer_has_not_said_it_yet(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of a send is done, and its thread has not come to tell the loop."""
    alice, bob, group = await remembered(running)
    fetching, writer = running.app[app_keys.FETCHING], running.app[app_keys.STORE]._writer
    held: list[Any] = []
    end = writer._end
    monkeypatch.setattr(writer, "_end", lambda *args: held.append(args))
    sending = asyncio.create_task(alice.send(group))
    await until(lambda: held)

    async def count(reader: Client, after: int, written_in: Format) -> int:
        ids = UUID(group).bytes, UUID(reader.user_id).bytes
        found = await fetching.page(*ids, after, 500, written_in)
        return len(found.pieces)

    try:
        assert await count(alice, 3, Format.JSON) == 0, "as if it were not sent yet"
        assert await count(bob, 0, Format.PROTOBUF) == 4
        assert await count(alice, 3, Format.JSON) == 1
    finally:
        monkeypatch.setattr(writer, "_end", end)
        for each in held:
            end(*each)
    assert await sending == 4
    assert await bob.numbers(group) == [1, 2, 3, 4]
    assert await alice.numbers(group, 3) == [4]
