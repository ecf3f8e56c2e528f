"""Devices that encrypt."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from conclave.clock import Clock
from tests.client.encryption.devices import Device
from tests.conftest import Running

NewDevice = Callable[..., Awaitable[Device]]


@pytest.fixture
async def device(running: Running, tmp_path: Path) -> AsyncIterator[NewDevice]:
    """Make a device of a new user's, connected."""
    async with AsyncExitStack() as stack:

        async def make(
            name: str,
            *,
            register: bool = True,
            folder: Path = tmp_path,
            accept_changed_keys: bool = True,
            clock: Clock | None = None,
        ) -> Device:
            """``clock``: of its machine; then the device goes by the time that it hears."""
            made = Device(running.url, name, folder, clock or running.clock)
            made.hears_time = clock is not None
            made.accept_changed_keys = accept_changed_keys
            stack.push_async_callback(made.end)
            await made.begin(register=register)
            await made.connect()
            return made

        yield make
