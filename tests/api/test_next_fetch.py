"""With ``fetch_confirmation = "next_fetch"`` a client has a message once its next fetch says so, and not before."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from conclave import app_keys
from conclave.cache.groups import GroupCache
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.store.engine.database import Database
from conclave.store.engine.faults import StoreFullError
from conclave.wire.handover import hand_over
from tests.conftest import Cleanup, Running, StartServer
from tests.support.archive import Mover
from tests.support.client import Client, expect
from tests.support.forensics import StoreSearch
from tests.support.protobuf import ProtobufClient

DAY = 86_400

both_formats = pytest.mark.parametrize("kind", [Client, ProtobufClient])


@pytest.fixture
async def running(next_fetch: Config, start_server: StartServer) -> AsyncIterator[Running]:
    async with start_server(next_fetch) as server:
        yield server


async def watermarks(running: Running) -> dict[str, int]:
    await running.settle()
    return dict(await running.query("SELECT username, watermark FROM members JOIN users USING (user_id)"))


async def two(running: Running, kind: type[Client] = Client) -> tuple[Client, Client, str]:
    """Alice and bob in a delete-after-fetch group with ten messages of alice's."""
    alice, bob = [await kind.register(running.http, running.url, name) for name in ("alice", "bob")]
    group = await alice.create_group("friends", expiry=0)
    await bob.join(group)
    for _ in range(10):
        await alice.send(group)
    return alice, bob, group


@both_formats
@pytest.mark.parametrize("remembers", [True, False])
async def test_a_fetch_confirms_what_it_asks_to_follow(
    running: Running, monkeypatch: pytest.MonkeyPatch, kind: type[Client], remembers: bool
) -> None:
    if not remembers:
        monkeypatch.setattr(GroupCache, "page", lambda *_: None)
    alice, bob, group = await two(running, kind)
    for after, confirmed in ((0, 0), (0, 0), (3, 3), (1, 3), (3, 3), (9, 9), (7, 9), (10, 10), (99, 10)):
        await bob.fetch(group, after, 5)
        assert await watermarks(running) == {"alice": 10, "bob": confirmed}, after
        shown = (await alice.get(f"/groups/{group}/retention"))["held_by"]
        assert shown == ([] if confirmed == 10 else [bob.user_id]), "it shows who has read and not said so"


async def test_what_follows_from_memory_is_confirmed_as_what_follows_from_the_store(running: Running) -> None:
    _, bob, group = await two(running)
    await bob.fetch(group)
    asked = 0
    read = running.app[app_keys.STORE].read

    async def counted(*args: object, **more: object) -> object:
        nonlocal asked
        asked += 1
        return await read(*args, **more)  # type: ignore[arg-type]  # as they came

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running.app[app_keys.STORE], "read", counted)
        await bob.fetch(group, 4)
    assert asked == 0
    assert (await watermarks(running))["bob"] == 4


async def test_what_came_from_the_archive_is_confirmed_alike(running: Running) -> None:
    _, bob, group = await two(running)
    Mover(running.config).move(group, 7)
    for after, confirmed in ((0, 0), (5, 5), (8, 8), (10, 10)):
        assert await bob.numbers(group, after) == [*range(after + 1, 11)]
        assert (await watermarks(running))["bob"] == confirmed


async def test_a_message_that_the_client_never_confirms_stays(running: Running, cleanup: Cleanup) -> None:
    """Read in full, acknowledged by nobody, not lost: what should stay stays, in each run."""
    _, bob, group = await two(running)
    assert await bob.numbers(group) == [*range(1, 11)]
    for _ in range(2):
        running.clock.advance(DAY)
        assert (await cleanup(running)).get("fetched", 0) == 0
    assert await bob.numbers(group) == [*range(1, 11)]
    assert await bob.numbers(group, 6) == [7, 8, 9, 10]
    await cleanup(running)
    assert await bob.numbers(group) == [7, 8, 9, 10]


async def test_what_all_have_confirmed_is_hidden_and_its_bytes_are_gone(
    next_fetch: Config, start_server: StartServer, cleanup: Cleanup
) -> None:
    search = StoreSearch()
    async with start_server(next_fetch) as running:
        alice, bob = await running.users("alice", "bob")
        group = await alice.create_group("friends", expiry=0)
        await bob.join(group)
        for number in range(1, 5):
            await alice.send(group, search.body(number, 200))
        await bob.fetch(group)
        await bob.fetch(group, 2)
        await cleanup(running)
        for each in (alice, bob):
            assert await each.numbers(group) == [3, 4]
    # Only now: to close its files while a server of this process has them open would let go of its locks.
    assert search.numbers_in(next_fetch.database.parent) == {3, 4}


async def test_a_send_counts_as_before(running: Running) -> None:
    alice, bob, group = await two(running)
    await bob.send(group)
    assert (await watermarks(running))["bob"] == 0, "bob has not said to have what came before"
    await alice.send(group)
    await bob.fetch(group, 12)
    await bob.send(group)
    assert (await watermarks(running))["bob"] == 13


async def test_a_client_that_has_gone_has_confirmed_all_the_same(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ``after`` says is true whether or not the answer arrives."""
    _, bob, group = await two(running)

    async def broken(*args: Any, **more: Any) -> bool:
        await hand_over(*args, **more)
        return False

    monkeypatch.setattr("conclave.api.messages.hand_over", broken)
    await bob.fetch(group, 6)
    assert (await watermarks(running))["bob"] == 6


async def test_messages_are_served_while_nothing_can_be_written(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bob, group = await two(running)

    async def full(*_: object) -> None:
        raise StoreFullError("the disk is full")

    monkeypatch.setattr(Database, "write_joint", full)
    assert await bob.numbers(group, 6) == [7, 8, 9, 10]


async def test_by_default_the_response_confirms(config: Config, start_server: StartServer) -> None:
    async with start_server(replace(config, retention=RetentionConfig())) as running:
        _, bob, group = await two(running)
        await bob.fetch(group, 0, 5)
        assert (await watermarks(running))["bob"] == 5


async def test_what_a_reader_may_not_see_is_not_waited_for(running: Running) -> None:
    alice, _, group = await two(running)
    [carol] = await running.users("carol")
    for _ in range(2):
        await alice.send(group, seconds=60)
    await carol.join(group)
    assert await carol.numbers(group) == [*range(1, 11)]
    assert (await watermarks(running))["carol"] == 0
    assert await carol.numbers(group, 10) == [], "11 and 12 were sent to others"
    assert (await watermarks(running))["carol"] == 12


@both_formats
@pytest.mark.parametrize("remembers", [True, False])
async def test_a_client_asks_for_that_itself(
    config: Config, start_server: StartServer, monkeypatch: pytest.MonkeyPatch, kind: type[Client], *, remembers: bool
) -> None:
    if not remembers:
        monkeypatch.setattr(GroupCache, "page", lambda *_: None)
    async with start_server(config) as running:
        _, bob, group = await two(running, kind)
        for query, confirmed in (
            ({"after": "0", "confirm": "next"}, 0),
            ({"confirm": "next", "limit": "3", "after": "3"}, 3),
            ({"limit": "2", "include_redacted": "true", "confirm": "next", "after": "6"}, 6),
            ({"after": "2", "limit": "5"}, 7),
            ({"confirm": "next", "after": "99"}, 10),
        ):
            await bob.get(f"/groups/{group}/messages", **query)
            assert await watermarks(running) == {"alice": 10, "bob": confirmed}, query
        for value in ("response", "", "Next", "next,next"):
            await expect(bob.get(f"/groups/{group}/messages", confirm=value), 400, 101)
