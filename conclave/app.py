"""Builds the application: its resources, middlewares and routes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from conclave import keys, middleware
from conclave.auth import Passwords, SessionActivity
from conclave.clock import Clock, SystemClock
from conclave.config import Config
from conclave.health import Health
from conclave.logs import get_logger
from conclave.policy import session_lag
from conclave.routes import add_routes
from conclave.store import sessions, state
from conclave.store.database import Database, StoreError
from conclave.wire.exchange import MAX_BODY_BYTES

log = get_logger(__name__)

ALIVE_INTERVAL_SECONDS = 5.0
"""How often the store learns that the server is alive; the retention contract asks for 10 s at least."""


def create_app(config: Config, clock: Clock | None = None) -> web.Application:
    """Build the server; its resources are opened when it starts."""
    app = web.Application(middlewares=[middleware.observe, middleware.authenticate], client_max_size=MAX_BODY_BYTES)
    app[keys.CONFIG] = config
    app[keys.CLOCK] = clock or SystemClock()
    app[keys.HEALTH] = Health()
    app[keys.PASSWORDS] = Passwords()
    app[keys.ACTIVITY] = SessionActivity(config.token_ttl_seconds)
    app.on_response_prepare.append(middleware.add_headers)
    add_routes(app)
    app.cleanup_ctx.extend([_store, _alive, _session_activity])
    return app


async def _store(app: web.Application) -> AsyncIterator[None]:
    app[keys.STORE] = await Database.open(app[keys.CONFIG].database)
    yield
    await app[keys.STORE].close()


async def _alive(app: web.Application) -> AsyncIterator[None]:
    store, clock = app[keys.STORE], app[keys.CLOCK]
    await store.write(state.begin_serving, app[keys.CONFIG].policy, clock.now())

    async def note() -> None:
        await store.write(state.still_alive, clock.now())

    async with _every(ALIVE_INTERVAL_SECONDS, note):
        yield
    await store.write(state.still_alive, clock.now(), stopping=True)


async def _session_activity(app: web.Application) -> AsyncIterator[None]:
    ttl, activity = app[keys.CONFIG].token_ttl_seconds, app[keys.ACTIVITY]

    async def write() -> None:
        uses = activity.unwritten()
        if uses:
            await app[keys.STORE].write(sessions.extend, uses, ttl)
            activity.written(uses)

    async with _every(session_lag(ttl), write):
        yield
    await write()


@contextlib.asynccontextmanager
async def _every(seconds: float, duty: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run ``duty`` again and again while the block lasts; a failure is logged, and the duty tried again."""

    async def repeat() -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await duty()
            except StoreError as error:
                log.error("background_write_failed", error=str(error))

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
