"""Whether the server serves, on both listeners."""

import pytest

from conclave import keys
from conclave.config.settings import Config
from conclave.health.parts import HealthPart, Phase
from conclave.health.readiness import Standing, standing
from conclave.server.app import create_app
from conclave.store import state
from conclave.store.faults import StoreError
from tests.admin.conftest import Operators
from tests.conftest import Running


async def of_clients(running: Running) -> tuple[int, str]:
    async with running.http.get(f"{running.url}/readyz") as response:
        told = await response.json()
        assert response.status == 200 or response.headers["Retry-After"] == "5"
        return response.status, told.get("status") or told["message"]


async def test_a_server_that_serves_is_ready_whatever_else_fails(operators: Operators) -> None:
    for part in HealthPart:
        operators.health.fault(part, "why")
    assert (await operators.ask("/readyz"))[:2] == (200, {"status": "ready"})
    assert await of_clients(operators.running) == (200, "ready")
    assert (await operators.ask("/healthz"))[0] == 503


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.STOPPING])
async def test_a_server_that_starts_or_stops_is_not(operators: Operators, phase: Phase) -> None:
    operators.health.phase = phase
    assert (await operators.ask("/readyz"))[:2] == (503, {"status": phase})
    assert await of_clients(operators.running) == (503, f"the server is not ready: {phase}")
    assert (await operators.scrape()).one("conclave_ready") == 0


async def test_a_server_that_cannot_read_is_not_until_it_can(operators: Operators) -> None:
    storage = operators.running.app[keys.STORAGE]
    storage.read(StoreError("the disk is gone"))
    assert (await operators.ask("/readyz"))[:2] == (503, {"status": "unreadable"})
    assert (await of_clients(operators.running))[0] == 503
    await operators.running.app[keys.STORE].read(state.stored_policy)
    assert (await operators.ask("/readyz"))[:2] == (200, {"status": "ready"})


async def test_an_application_goes_through_its_phases(config: Config) -> None:
    app = create_app(config)
    assert standing(app[keys.HEALTH], app.get(keys.STORAGE)) is Standing.STARTING
