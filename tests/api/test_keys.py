"""Messages under keys, over HTTP: what is stored, what is served, and what is lost with what is erased."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from conclave import app_keys
from conclave.config.settings import Config
from conclave.keys import tree
from conclave.keys.inspection import Inspection
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError
from tests.conftest import Cleanup, Running, StartServer
from tests.support.archive import Mover
from tests.support.client import PASSWORD, Client, RefusedError, encode
from tests.support.listening import listening

HOUR = 3600
PACKAGE = b"\x00\x01\x00\x05"


@pytest.fixture
def keyed(config: Config) -> Config:
    return config


@pytest.fixture
async def server(keyed: Config, start_server: StartServer) -> AsyncIterator[Running]:
    async with start_server(keyed) as running:
        yield running


def bytes_of(folder: Path) -> bytes:
    return b"\n".join(each.read_bytes() for each in sorted(folder.rglob("*")) if each.is_file())


def living(config: Config, group: str, numbers: list[int]) -> list[bool]:
    return Inspection(config.keys_path).have_keys(UUID(group).bytes, numbers)


def nodes_above(config: Config, group: str, number: int) -> list[bytes]:
    """Return all nodes that lead to the key of a message; nothing of its block may be erased yet."""
    (root,) = Inspection(config.keys_path).cover(UUID(group).bytes, 0)
    leaf = tree.BLOCK + number
    return [tree.descend(root.secret, leaf >> steps, tree.HEIGHT - steps) for steps in range(tree.HEIGHT + 1)]


async def bodies(client: Client, group: str) -> list[bytes]:
    return [each.body for each in await client.fetch(group)]


async def test_an_archived_message_that_was_taken_back_is_told_without_its_body(server: Running) -> None:
    alice = await server.user("alice")
    group = await alice.create_group("g")
    for number in range(1, 4):
        await alice.send(group, b"%d" % number)
    Mover(server.config).move(group, 3)
    await alice.take_back(group, 2)
    told = await alice.fetch(group, include_redacted=True)
    assert [(each.sequence_num, each.body, each.redacted) for each in told] == [
        *((1, b"1", False), (2, b"", True), (3, b"3", False))
    ]
    assert await bodies(alice, group) == [b"1", b"3"]


async def test_what_is_sent_is_served_and_lies_nowhere_as_it_came(
    keyed: Config, start_server: StartServer, tmp_path: Path
) -> None:
    sent = [b"the first of all bodies", b"x", b"x" * 20_000, b"the last of all bodies"]
    async with start_server(keyed) as server:
        alice, bob = await server.users("alice", "bob")
        group = await alice.create_group("g")
        await bob.join(group)
        for body in sent:
            await alice.send(group, body)
        assert await bodies(bob, group) == sent, "from memory"
    async with start_server(keyed) as server:
        again = Client(server.http, server.url, bob.token, bob.user_id)
        assert await bodies(again, group) == sent, "from the store"
        assert [each.sequence_num for each in await again.fetch(group, 1, 2)] == [2, 3]
    data = bytes_of(tmp_path)
    assert not any(body in data for body in sent if len(body) > 1)


async def test_bodies_of_all_kinds_are_under_keys(server: Running, tmp_path: Path) -> None:
    alice, bob = await server.users("alice", "bob")
    await bob.upload(PACKAGE + b"a package of its own kind", last_resort=PACKAGE + b"the last of its own kind")
    group = await alice.create_group("g", public=False)
    await alice.post(f"/groups/{group}/commit", group_info=encode(b"an info of its own kind"))
    invite = await alice.invite(group, bob, b"a commit of its own kind")
    assert b"of its own kind" not in bytes_of(tmp_path)
    await bob.accept(invite)
    assert await bodies(alice, group) == [b"a commit of its own kind commit"]
    assert await bob.welcomes() == [b"a commit of its own kind welcome"]
    assert await bob.group_info(group) == b"a commit of its own kind info"
    assert b"of its own kind" not in bytes_of(tmp_path)


async def test_at_the_end_of_a_run_nothing_leads_to_the_keys_of_what_it_has_erased(
    server: Running, cleanup: Cleanup, tmp_path: Path
) -> None:
    """By age, by timers, and with accounts and groups that are deleted. What should stay has stayed."""
    config = server.config
    alice, bob, carol = await server.users("alice", "bob", "carol")
    fading, timed, left, doomed = [
        await alice.create_group(name, expiry=HOUR if name == "fading" else None)
        for name in ("fading", "timed", "left", "doomed")
    ]
    for group in (fading, timed, left, doomed):
        await bob.join(group)
        await carol.join(group)
        await alice.send(group, b"one")
        await carol.send(group, b"two", 60 if group == timed else 0)
    lost = {
        node
        for group, numbers in ((fading, [1, 2]), (timed, [2]), (left, [2]), (doomed, [1, 2]))
        for number in numbers
        for node in nodes_above(config, group, number)
    }
    await alice.read(timed, 2)
    await bob.read(timed, 2)
    await carol.post("/delete-account", password=PASSWORD)
    await alice.post(f"/groups/{doomed}/delete")
    server.clock.advance(2 * HOUR)
    await alice.send(fading, b"three")
    assert await bodies(bob, fading) == [b"three"]
    assert await bodies(bob, timed) == await bodies(bob, left) == [b"one"]
    await cleanup(server)
    await cleanup(server)  # what the first hides, the second erases
    assert await bodies(bob, fading) == [b"three"]
    assert await bodies(bob, timed) == await bodies(bob, left) == [b"one"]
    assert living(config, fading, [1, 2, 3, 4]) == [False, False, True, True]
    assert living(config, timed, [1, 2, 3]) == living(config, left, [1, 2, 3]) == [True, False, True]
    assert UUID(doomed).bytes not in {group_id for group_id, _ in Inspection(config.keys_path).blocks()}
    data = bytes_of(tmp_path)
    assert not any(node in data for node in lost)
    assert await server.query("SELECT count(*) FROM key_erasures") == [(0,)]


async def test_what_is_held_keeps_its_key(server: Running, cleanup: Cleanup) -> None:
    alice, bob = await server.users("alice", "bob")
    group = await alice.create_group("g", expiry=HOUR)
    await bob.join(group)
    await alice.send(group, b"one")
    with closing(sqlite.connect(server.config.database)) as connection:
        connection.execute(
            "INSERT INTO holds (group_key, subject_id, name, reason, added_by, added_at)"
            " SELECT group_key, group_id, group_name, '', '', 0 FROM groups"
        )
    server.clock.advance(2 * HOUR)
    await cleanup(server)
    assert await bodies(bob, group) == []
    assert living(server.config, group, [1]) == [True]
    with closing(sqlite.connect(server.config.database)) as connection:
        connection.execute("DELETE FROM holds")
    await cleanup(server)
    assert living(server.config, group, [1]) == [False]


async def alter(server: Running, sql: str, *values: object) -> None:
    with closing(sqlite.connect(server.config.database)) as connection:
        connection.execute(sql, values)


async def restarted(start_server: StartServer, config: Config, client: Client, group: str) -> dict[str, str]:
    """Return the faults of a server that was asked for a page which it must not serve."""
    async with start_server(config) as server:
        with pytest.raises(RefusedError) as refused:
            await Client(server.http, server.url, client.token, client.user_id).fetch(group)
        assert refused.value.status == 503
        return dict(server.app[app_keys.HEALTH].faults)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE message_bodies SET body = CAST(substr(body, 1, 20) || x'00' || substr(body, 22) AS BLOB)"
        " WHERE message_id = (SELECT message_id FROM messages WHERE sequence_num = 1)",
        "UPDATE message_bodies SET body = (SELECT body FROM message_bodies AS other WHERE other.message_id ="
        " (SELECT message_id FROM messages WHERE sequence_num = 2))"
        " WHERE message_id = (SELECT message_id FROM messages WHERE sequence_num = 1)",
        "UPDATE message_bodies SET body = x'00'"
        " WHERE message_id = (SELECT message_id FROM messages WHERE sequence_num = 1)",
    ],
    ids=["a bit", "the body of another message", "hardly anything"],
)
async def test_a_body_that_is_not_as_it_was_stored_is_never_served(
    keyed: Config, start_server: StartServer, change: str
) -> None:
    async with start_server(keyed) as server:
        alice, bob = await server.users("alice", "bob")
        group = await alice.create_group("g")
        await bob.join(group)
        await alice.send(group, b"a body of one")
        await alice.send(group, b"a body of two")
    await alter(server, change)
    faults = await restarted(start_server, keyed, bob, group)
    assert "message 1 of group" in faults["storage"]


async def test_a_server_whose_key_file_is_away_does_not_begin_one(keyed: Config, start_server: StartServer) -> None:
    async with start_server(keyed) as server:
        alice = await server.user("alice")
        await alice.send(await alice.create_group("g"))
    away = keyed.keys_path.rename(keyed.keys_path.with_name("away"))
    with pytest.raises(StoreError, match="the vault is missing"):
        async with start_server(keyed):
            pass
    assert not keyed.keys_path.exists()
    away.rename(keyed.keys_path)
    async with start_server(keyed):
        pass


async def test_sends_at_the_same_time_need_no_more_than_a_key_each(server: Running) -> None:
    """Also first ones, for which the roots are drawn, in groups that were just made."""
    alice, bob = await server.users("alice", "bob")
    groups = [await alice.create_group(f"g{number}") for number in range(5)]
    for group in groups:
        await bob.join(group)
    async with listening(bob):
        await asyncio.gather(*(alice.send(groups[n % 5], f"body {n}".encode()) for n in range(100)))
    for place, group in enumerate(groups):
        expected = sorted(f"body {n}".encode() for n in range(place, 100, 5))
        assert sorted(await bodies(bob, group)) == expected
        assert len(Inspection(server.config.keys_path).cover(UUID(group).bytes, 0)) == 1
