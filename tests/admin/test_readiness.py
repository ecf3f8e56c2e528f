"""Whether the server serves, on both listeners."""

from contextlib import AsyncExitStack

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from conclave import app_keys
from conclave.admin.access import Guard
from conclave.admin.app import create_admin_app
from conclave.config.settings import Config
from conclave.health.parts import HealthPart, Phase
from conclave.health.readiness import Readiness, readiness_of
from conclave.server.app import create_app
from conclave.store.engine.faults import StoreError
from conclave.store.resources import state
from tests.admin.conftest import Operators, operating_beside
from tests.conftest import Running, StartServer
from tests.support.scrape import read


async def of_clients(running: Running) -> tuple[int, str]:
    async with running.http.get(f"{running.url}/readyz") as response:
        told = await response.json()
        assert response.status == 200 or response.headers["Retry-After"] == "5"
        return response.status, told.get("status") or told["message"]


async def test_a_server_that_serves_is_ready_whatever_else_fails(operators: Operators) -> None:
    for part in set(HealthPart) - {HealthPart.VAULT}:
        operators.health.set_fault(part, "why")
    assert (await operators.ask("/readyz"))[:2] == (200, {"status": "ready"})
    assert await of_clients(operators.running) == (200, "ready")
    assert (await operators.ask("/healthz"))[0] == 503
    operators.health.set_fault(HealthPart.VAULT, "why")
    assert (await operators.ask("/readyz"))[:2] == (503, {"status": "unreadable"})


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.STOPPING])
async def test_a_server_that_starts_or_stops_is_not(operators: Operators, phase: Phase) -> None:
    operators.health.phase = phase
    assert (await operators.ask("/readyz"))[:2] == (503, {"status": phase})
    assert await of_clients(operators.running) == (503, f"the server is not ready: {phase}")
    assert (await operators.scrape()).one("conclave_ready") == 0


async def test_a_server_that_cannot_read_is_not_until_it_can(operators: Operators) -> None:
    storage = operators.running.app[app_keys.STORAGE]
    storage.read(StoreError("the disk is gone"))
    assert (await operators.ask("/readyz"))[:2] == (503, {"status": "unreadable"})
    assert (await of_clients(operators.running))[0] == 503
    await operators.running.app[app_keys.STORE].read(state.stored_policy)
    assert (await operators.ask("/readyz"))[:2] == (200, {"status": "ready"})


async def test_before_the_server_serves_operators_are_answered(config: Config) -> None:
    """Their listener is there first: a start that takes long is seen."""
    server = TestServer(create_admin_app(create_app(config), Guard(config.admin)))
    await server.start_server()
    try:
        async with ClientSession() as http:
            async with http.get(server.make_url("/readyz")) as response:
                assert (response.status, await response.json()) == (503, {"status": "starting"})
            async with http.get(server.make_url("/metrics")) as response:
                assert response.status == 200
                assert read(await response.text()).one("conclave_ready") == 0
    finally:
        await server.close()


async def test_a_server_goes_through_its_phases(config: Config, start_server: StartServer) -> None:
    async with start_server(config) as running:
        app = running.app
        assert readiness_of(app[app_keys.HEALTH], app[app_keys.STORAGE]) is Readiness.READY
    assert readiness_of(app[app_keys.HEALTH], app[app_keys.STORAGE]) is Readiness.STOPPING


async def test_operators_are_answered_once_all_is_closed(config: Config, start_server: StartServer) -> None:
    """Their listener is there last: the store is closed, and nobody may wait for it."""
    async with AsyncExitStack() as held:
        async with start_server(config) as running:
            operators = await held.enter_async_context(operating_beside(running))
            http = await held.enter_async_context(ClientSession())
        async with http.get(operators.server.make_url("/metrics")) as response:
            assert response.status == 200
            assert read(await response.text()).one("conclave_ready") == 0
        async with http.get(operators.server.make_url("/readyz")) as response:
            assert (response.status, await response.json()) == (503, {"status": "stopping"})
