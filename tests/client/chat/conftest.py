"""Servers: one in this process, on whose clock conversations go, and one in a process of its own, for screens."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import ClientSession

from conclave.client import Codec, sync as sync_module
from conclave.client.chat import conversation as conversation_module
from tests.conftest import Running
from tests.support.chatting import SETTINGS
from tests.support.conversing import Chat, NewChat, Pair
from tests.support.server import ServerProcess


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_module, "ENFORCE_INTERVAL", 0.02)
    monkeypatch.setattr(conversation_module, "REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(conversation_module, "RETENTION_POLL_SECONDS", 0.05)
    monkeypatch.setattr(conversation_module, "EVENT_WAIT_SECONDS", 0.2)


@pytest.fixture
async def chat(running: Running, quick: None) -> AsyncIterator[NewChat]:
    async with AsyncExitStack() as stack:

        async def make(
            name: str,
            path: Path | None = None,
            *,
            connects: bool = True,
            register: bool = True,
            codec: Codec | None = None,
        ) -> Chat:
            made = Chat(running.url, name, running.clock, path, codec=codec)
            stack.push_async_callback(made.end)
            await made.begin(register=register)
            if connects:
                await made.connect()
            return made

        yield make


@pytest.fixture
async def pair(chat: NewChat) -> Pair:
    """Alice, who is admin, and Bob in a group that is open at both."""
    alice, bob = await chat("alice"), await chat("bob")
    group = await alice.new("club", bob)
    for each in (alice, bob):
        each.conversation.open_group(group)
    await bob.until(lambda: bob.room(group).retention)
    return alice, bob, group


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), SETTINGS) as started:
        yield started


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session
