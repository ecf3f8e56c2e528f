"""One group of three kinds of clients: the browser's engine, the Python client, and existing ones."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from conclave.client import Client
from tests.client.encryption.devices import QUICK
from tests.client.encryption.test_existing import Existing
from tests.client.mls.actors import PeerProcess
from tests.support.client import PASSWORD
from tests.support.server import PATIENCE, ServerProcess
from tests.web.chatter import Chatter, Chatters
from tests.web.conftest import NewDevice
from tests.web.node import needs_node

PEER = os.environ.get("CONCLAVE_MLS_PEER")
pytestmark = [needs_node, pytest.mark.system]


@pytest.fixture
async def eve(server: ServerProcess) -> AsyncIterator[Existing]:
    if PEER is None:
        pytest.skip("CONCLAVE_MLS_PEER names no live peer")
    process = PeerProcess(Path(PEER))
    async with Client(server.url, backoff=QUICK) as client:
        await client.register("eve", PASSWORD)
        await client.login("eve", PASSWORD)
        made = Existing(client, process)
        await made.upload()
        yield made
    process.close()


async def reads(eve: Existing, group: UUID, text: str) -> None:
    async with asyncio.timeout(PATIENCE / 3):
        while text not in eve.read:
            await eve.fetches(group)
            await asyncio.sleep(0.05)


async def members(alice: Chatter, count: int) -> None:
    """Wait until so many can read."""
    await alice.until(lambda view: sum(each["key"] is not None for each in view["groups"][0]["members"]) == count)


async def test_all_three_talk(chatters: Chatters, device: NewDevice, eve: Existing) -> None:
    alice, bob = await chatters.new("alice"), await device("bob")
    group = await alice("createGroup", "club")
    await alice("open", group)
    await alice("invite", group, "bob")
    await bob.comes_in(UUID(group))
    await members(alice, 2)
    await alice("invite", group, "eve")
    await eve.accepts()
    await members(alice, 3)
    eve._up_to = (await eve.client.fetch(UUID(group)))[-1].sequence_num
    await alice("send", group, "from the browser")
    await bob.hears("from the browser")
    await reads(eve, UUID(group), "from the browser")
    await eve.says(UUID(group), "from eve")
    await alice.hears("from eve")
    await bob.hears("from eve")
    answer = eve.mls.ask("commit")
    await eve.client.commit(
        UUID(group), commit_message=bytes.fromhex(answer["commit"]), group_info=bytes.fromhex(answer["group_info"])
    )
    await eve.fetches(UUID(group))
    await eve.says(UUID(group), "renewed")
    await alice.hears("renewed")
    await alice("send", group, "and read")
    await reads(eve, UUID(group), "and read")
    await alice("removeMember", group, str(bob.user_id))
    await members(alice, 2)
    await eve.fetches(UUID(group))
    await eve.says(UUID(group), "two of us")
    await alice.hears("two of us")


async def test_who_was_away_reads_all_of_it(chatters: Chatters, device: NewDevice) -> None:
    alice, bob = await chatters.new("alice"), await device("bob")
    group = await alice("createGroup", "club")
    await alice("open", group)
    await alice("invite", group, "bob")
    await bob.comes_in(UUID(group))
    await members(alice, 2)
    await chatters.ask("network", isOffline=True)
    said = [f"message {number}" for number in range(50)]
    for number, text in enumerate(said):
        await bob.sync.send(UUID(group), text)
        if number % 20 == 10:
            change = bob.codec.commit(UUID(group))
            await bob.client.commit(UUID(group), commit_message=change.commit, group_info=change.group_info)
            bob.sync.look_at(UUID(group))
    await chatters.ask("network", isOffline=False)
    await alice("wake")
    await alice.hears(said[-1])
    assert await alice.texts() == said


async def test_lost_keys_are_made_anew(chatters: Chatters, device: NewDevice) -> None:
    alice, bob = await chatters.new("alice"), await device("bob")
    group = await alice("createGroup", "club")
    await alice("open", group)
    await alice("invite", group, "bob")
    await bob.comes_in(UUID(group))
    await members(alice, 2)
    await alice("resetKeys")
    await alice.until(lambda view: view["groups"][0]["encryption"]["standing"] == "waiting")
    await alice.group(group)
    await alice("send", group, "with new keys")
    await bob.hears("with new keys")
    await bob.sync.send(UUID(group), "read")
    await alice.hears("read")
