"""Fixtures: a server in its own process with engines of the browser chat, Python clients, or browsers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

from conclave.clock import SystemClock
from tests.client.encryption.devices import Device
from tests.support import browser
from tests.support.proxies import free_ports
from tests.support.server import ServerProcess
from tests.web.chatter import Chatter, Chatters
from tests.web.node import bundled
from tests.web.people import Pair, server_on, user_with_browser

NewDevice = Callable[..., Awaitable[Device]]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the programs of web/test."""
    return bundled(tmp_path_factory.mktemp("web"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    folder = tmp_path / "server"
    folder.mkdir()
    with ServerProcess(folder) as process:
        yield process


@pytest.fixture
async def chatters(programs: Path, server: ServerProcess, tmp_path: Path) -> AsyncIterator[Chatters]:
    async with Chatters(programs / "chatter.mjs", server.url, tmp_path) as process:
        yield process


@pytest.fixture
async def device(server: ServerProcess, tmp_path: Path) -> AsyncIterator[NewDevice]:
    """Create connected devices of new users with the Python client."""
    async with AsyncExitStack() as stack:

        async def make(name: str, *, register: bool = True) -> Device:
            made = Device(server.url, name, tmp_path, SystemClock())
            made.hears_time = True
            stack.push_async_callback(made.end)
            await made.begin(register=register)
            await made.connect()
            return made

        yield make


class Club(NamedTuple):
    """A group of Alice's engine, in which it is open, and Bob's device. Each knows the other's key."""

    alice: Chatter
    bob: Device
    group: str


@pytest.fixture
async def club(chatters: Chatters, device: NewDevice) -> Club:
    """A group that Alice has created."""
    alice, bob = await chatters.new("alice"), await device("bob")
    group = await alice("createGroup", "club")
    await alice("open", group)
    await alice("invite", group, "bob")
    await bob.comes_in(UUID(group))
    await alice.is_with(1)
    return Club(alice, bob, group)


@pytest.fixture
async def bobs_club(chatters: Chatters, device: NewDevice) -> Club:
    """A group that Bob has created."""
    alice, bob = await chatters.new("alice"), await device("bob")
    group = await bob.sync.membership.create("club")
    await bob.sync.membership.invite(group, "alice")
    assert await alice.invited() == str(group)
    await alice("open", str(group))
    return Club(alice, bob, str(group))


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    browser.found()
    [port] = free_ports(1)
    async with AsyncExitStack() as stack:
        people = []
        server = stack.enter_context(server_on(tmp_path, port))
        for name in ("alice", "bob"):
            people.append(await stack.enter_async_context(user_with_browser(tmp_path, f"{server.url}/", name)))
            await people[-1].create_account()
        yield Pair(people[0], people[1], tmp_path, port, server)
