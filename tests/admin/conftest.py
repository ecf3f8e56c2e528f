"""A server with its operators' listener."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestServer
from yarl import URL

from conclave import app_keys
from conclave.admin.access import Guard
from conclave.admin.app import SIZES, create_admin_app
from conclave.admin.page.routes import PAGE
from conclave.health.parts import Health
from tests.conftest import Running
from tests.support.scrape import Samples, read


class Operators:
    """The operators' listener of a server that runs in this process."""

    def __init__(self, running: Running, server: TestServer) -> None:
        self.running = running
        self.server = server
        self.app = server.app
        self.sizes = server.app[SIZES]
        self.snapshot = server.app[PAGE].snapshot
        self.health: Health = running.app[app_keys.HEALTH]

    async def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, Any, ClientResponse]:
        """Return status, body and response; ``headers`` with underscores for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = URL(f"http://127.0.0.1:{self.server.port}{path}", encoded=True)
        async with self.running.http.request(method, url, headers=named) as response:
            is_json = response.content_type == "application/json"
            return response.status, await (response.json() if is_json else response.text()), response

    async def measured(self) -> None:
        """Wait until all sizes are known."""
        while self.sizes.last.free_pages is None:
            await self.sizes.refresh()

    async def scrape(self) -> Samples:
        status, text, response = await self.ask("/metrics")
        assert status == 200, text
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        return read(text)


@contextlib.asynccontextmanager
async def operating_beside(running: Running) -> AsyncIterator[Operators]:
    server = TestServer(create_admin_app(running.app, Guard(running.config.admin)))
    await server.start_server()
    try:
        yield Operators(running, server)
    finally:
        await server.close()


@pytest.fixture
async def operators(running: Running) -> AsyncIterator[Operators]:
    async with operating_beside(running) as found:
        yield found
