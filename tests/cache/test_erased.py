"""What was erased is dropped from memory: by the next look, whether or not anybody asks for it."""

import asyncio
from dataclasses import replace

import pytest

from conclave import app_keys
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from tests.conftest import Running
from tests.support.cleaner import Cleaner
from tests.support.client import PASSWORD, Client
from tests.support.protobuf import ProtobufClient


@pytest.fixture
def config(config: Config) -> Config:
    return replace(config, cleanup=CleanupConfig(engine="sql", disk_reserve=0))


def remembered(running: Running) -> bytes:
    """All that the server remembers of messages, as one text."""
    known = running.app[app_keys.GROUPS]._by_id.values()
    return b"".join(piece for group in known for _, run in group.ranges for piece in run.pieces)


async def run(running: Running, cleaner: Cleaner) -> None:
    """Do a run in another process, and have the server look once."""
    await running.settle()
    report = await asyncio.to_thread(cleaner.run, running.config, running.clock.now())
    assert sum(report["deleted"].values()) == 3
    await asyncio.sleep(0)
    running.app[app_keys.FRESHNESS].refresh()


async def expire(running: Running, alice: Client, _: Client, group: str) -> None:
    await alice.set_expiry(group, 50)
    await read(running, alice, group)
    running.clock.advance(51)


async def have_it_fetched(running: Running, alice: Client, bob: Client, group: str) -> None:
    await alice.set_expiry(group, 0)
    for client in (alice, bob):
        await client.fetch(group)
    await read(running, alice, group)


async def delete_group(_: Running, alice: Client, __: Client, group: str) -> None:
    await alice.post(f"/groups/{group}/delete")


async def delete_account(_: Running, __: Client, bob: Client, ___: str) -> None:
    await bob.post("/delete-account", password=PASSWORD)


async def read(running: Running, client: Client, group: str) -> None:
    """Have the server remember the group."""
    await client.fetch(group)
    await running.settle()
    assert await client.fetch(group)
    assert b"erase" in remembered(running)


ENDS = {each.__name__: each for each in (expire, have_it_fetched, delete_group, delete_account)}


@pytest.mark.parametrize("end", ENDS, ids="sql-{}".format)
async def test_erased_bodies_are_not_remembered(running: Running, cleaner: Cleaner, end: str) -> None:
    alice, bob = [await ProtobufClient.register(running.http, running.url, name) for name in ("alice", "bob")]
    group = await alice.create_group("friends")
    await bob.join(group)
    for n in range(3):
        await bob.send(group, b"erase %d" % n)
    await read(running, alice, group)
    await ENDS[end](running, alice, bob, group)
    await run(running, cleaner)
    assert b"erase" not in remembered(running)
