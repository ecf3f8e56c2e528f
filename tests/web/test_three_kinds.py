"""One group with three kinds of clients: the browser's engine, the Python client, and an existing client."""

from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from tests.client.encryption.test_existing import PEER, Existing, existing_client
from tests.client.mls.actors import PeerProcess
from tests.support.server import ServerProcess
from tests.web.chatter import Chatters
from tests.web.conftest import Club
from tests.web.node import needs_node

pytestmark = [needs_node, pytest.mark.system]


@pytest.fixture
async def eve(server: ServerProcess) -> AsyncIterator[Existing]:
    if PEER is None:
        pytest.skip("CONCLAVE_MLS_PEER names no live peer")
    with closing(PeerProcess(Path(PEER))) as process:
        async with existing_client(server.url, "eve", process) as made:
            yield made


async def test_all_three_talk(club: Club, eve: Existing) -> None:
    alice, bob, group = club
    await alice("invite", group, "eve")
    await eve.accepts()
    await alice.is_with(2)
    await alice("send", group, "from the browser")
    await bob.hears("from the browser")
    await eve.hears(UUID(group), "from the browser")
    await eve.says(UUID(group), "from eve")
    await alice.receives("from eve")
    await bob.hears("from eve")
    await eve.commits(UUID(group))
    await eve.says(UUID(group), "renewed")
    await alice.receives("renewed")
    await alice("send", group, "and read")
    await eve.hears(UUID(group), "and read")
    await alice("removeMember", group, str(bob.user_id))
    await alice.is_with(1)
    await eve.fetches(UUID(group))
    await eve.says(UUID(group), "two of us")
    await alice.receives("two of us")


async def test_a_client_that_was_offline_reads_all_messages(chatters: Chatters, club: Club) -> None:
    alice, bob, group = club
    await chatters.ask("network", isOffline=True)
    said = [f"message {number}" for number in range(50)]
    for number, text in enumerate(said):
        await bob.sync.send(UUID(group), text)
        if number % 20 == 10:
            await bob.renew(UUID(group))
    await chatters.ask("network", isOffline=False)
    await alice("reconnect")
    await alice.receives(said[-1])
    assert await alice.texts() == said


async def test_reset_keys_can_send_and_read(club: Club) -> None:
    alice, bob, group = club
    await alice("resetKeys")
    await alice.until(lambda view: view["groups"][0]["encryption"]["status"] == "waiting")
    await alice.group(group)
    await alice("send", group, "with new keys")
    await bob.hears("with new keys")
    await bob.sync.send(UUID(group), "read")
    await alice.receives("read")
