"""The server's background work ends with it."""

import asyncio

from aiohttp import web

from conclave import app_keys
from conclave.health.parts import Health, HealthPart
from conclave.server import duties
from tests.support.server import PATIENCE


async def test_a_duty_that_is_wanted_early_at_the_moment_it_ends_does_not_go_on() -> None:
    """Or the server would never stop."""
    early, times = asyncio.Event(), 0

    async def duty() -> None:
        nonlocal times
        times += 1

    app = web.Application()
    app[app_keys.HEALTH] = Health()
    async with asyncio.timeout(PATIENCE), duties._every(app, HealthPart.SESSION_ACTIVITY, 3_600, duty, early):
        early.set()
        while not times:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        early.set()
    assert times == 1
