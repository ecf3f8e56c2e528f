"""A server in a process of its own, with engines of the browser chat and the Python client at it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from conclave.clock import SystemClock
from tests.client.encryption.devices import Device
from tests.support.server import ServerProcess
from tests.web.chatter import Chatters
from tests.web.node import bundled

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
    """Make a device of a new user's with the Python client, connected."""
    async with AsyncExitStack() as stack:

        async def make(name: str, *, register: bool = True) -> Device:
            made = Device(server.url, name, tmp_path, SystemClock())
            made.hears_time = True
            stack.push_async_callback(made.end)
            await made.begin(register=register)
            await made.connect()
            return made

        yield make
