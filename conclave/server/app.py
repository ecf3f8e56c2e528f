"""Builds the application: its resources, middlewares and routes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from conclave import keys
from conclave.actions.context import Context
from conclave.archive.reader import Archive, ArchiveError
from conclave.auth.activity import SessionActivity
from conclave.auth.passwords import Passwords
from conclave.auth.throttle import Throttle
from conclave.budget import Budget
from conclave.clock import Clock, SystemClock
from conclave.config.settings import Config
from conclave.events import Events
from conclave.health import Health, HealthPart
from conclave.logs import get_logger
from conclave.retention.policy import session_lag
from conclave.server import middleware
from conclave.server.clock_watch import ClockWatch
from conclave.server.routes import add_routes
from conclave.server.storage import Storage
from conclave.steady_clock import SteadyClock
from conclave.store import outbox, sessions, state
from conclave.store.archive import stretches
from conclave.store.database import Database
from conclave.store.faults import StoreError
from conclave.system.reserve import reserves
from conclave.wire.exchange import MAX_BODY_BYTES

log = get_logger(__name__)

ALIVE_INTERVAL_SECONDS = 5.0
"""How often the store learns that the server is alive; the retention contract asks for 10 s at least."""

LOOK_INTERVAL_SECONDS = 1.0
"""How soon the server learns what other processes found out about the clock, or accepted."""

OUTBOX_INTERVAL_SECONDS = 1.0
STORAGE_INTERVAL_SECONDS = 0.5

RETRY_SECONDS = 1.0
"""When a duty that has failed is tried again, at the latest."""

ARCHIVE_RETRY_SECONDS = 10.0
"""How often an archive that could not be read is tried, if nobody asks for it."""


def create_app(config: Config, clock: Clock | None = None) -> web.Application:
    """Build the server; its resources are opened when it starts."""
    around = [middleware.observe, middleware.deliver, middleware.authenticate]
    app = web.Application(middlewares=around, client_max_size=MAX_BODY_BYTES)
    app[keys.CONFIG] = config
    app[keys.CLOCK] = steady = SteadyClock(clock or SystemClock())
    app[keys.HEALTH] = Health()
    app[keys.EVENTS] = Events()
    app[keys.PASSWORDS] = Passwords()
    app[keys.THROTTLE] = Throttle(config.limits, app[keys.PASSWORDS], steady)
    app[keys.BUDGET] = Budget(config.limits.response_bytes)
    app[keys.ACTIVITY] = SessionActivity(config.token_ttl_seconds)
    app[keys.CONTEXT] = Context(config.policy, steady)
    app.on_response_prepare.append(middleware.add_headers)
    app.on_shutdown.append(_end_streams)
    add_routes(app)
    app.cleanup_ctx.extend([_store, _storage, _archive, _alive, _session_activity, _outbox])
    return app


async def _end_streams(app: web.Application) -> None:
    app[keys.EVENTS].end_all()


async def _store(app: web.Application) -> AsyncIterator[None]:
    config = app[keys.CONFIG]
    app[keys.STORAGE] = storage = Storage(config.database, reserves(config), MAX_BODY_BYTES, app[keys.HEALTH])
    app[keys.STORE] = await Database.open(config.database, app[keys.EVENTS].publish, storage)
    yield
    await app[keys.STORE].close()


async def _storage(app: web.Application) -> AsyncIterator[None]:
    store, storage = app[keys.STORE], app[keys.STORAGE]

    async def look() -> None:
        await asyncio.to_thread(storage.look)
        storage.tell()
        if storage.has_failed:
            # Whether it works again shows only if somebody tries, which on an idle server nobody else does.
            await store.read(state.stored_policy)
            await store.write(state.probe)

    async def quietly() -> None:
        with contextlib.suppress(StoreError):  # of which storage has heard already
            await look()

    await quietly()
    async with _every(app, HealthPart.STORAGE_WATCH, STORAGE_INTERVAL_SECONDS, quietly):
        yield


async def _archive(app: web.Application) -> AsyncIterator[None]:
    config, health = app[keys.CONFIG], app[keys.HEALTH]
    app[keys.ARCHIVE] = reader = Archive(config.archive_path, config.database, health)

    async def try_out() -> None:
        with contextlib.suppress(ArchiveError):  # health and the log have heard of it already
            await reader.warm_up()

    async def try_again() -> None:
        if HealthPart.ARCHIVE in health.faults:
            await try_out()

    # Beside the start, not before it: what is new can be read without the archive.
    is_to_be_there = await app[keys.STORE].read(stretches.is_to_be_there)
    trying = asyncio.create_task(try_out()) if is_to_be_there else None
    async with _every(app, HealthPart.ARCHIVE_WATCH, ARCHIVE_RETRY_SECONDS, try_again):
        yield
    if trying:
        await trying
    await reader.close()


async def _alive(app: web.Application) -> AsyncIterator[None]:
    health = app[keys.HEALTH]
    app[keys.CLOCK_WATCH] = watch = ClockWatch(app[keys.CLOCK], app[keys.STORE], health, app[keys.ACTIVITY])
    await watch.begin(app[keys.CONFIG].policy)
    async with (
        _every(app, HealthPart.ALIVE, ALIVE_INTERVAL_SECONDS, watch.note),
        _every(app, HealthPart.CLOCK_WATCH, LOOK_INTERVAL_SECONDS, watch.look),
    ):
        yield
    with health.duty(HealthPart.ALIVE):
        await watch.note(stopping=True)


async def _session_activity(app: web.Application) -> AsyncIterator[None]:
    ttl, activity = app[keys.CONFIG].token_ttl_seconds, app[keys.ACTIVITY]

    async def write() -> None:
        for session_id in app[keys.EVENTS].sessions():
            # A stream tells of its use whenever it writes, which one whose client takes nothing does not.
            activity.keep(session_id, app[keys.CLOCK].now())
        uses = activity.unwritten()
        if uses:
            await app[keys.STORE].write(sessions.extend, uses, ttl, app[keys.CLOCK])
            activity.written(uses)

    async with _every(app, HealthPart.SESSION_ACTIVITY, session_lag(ttl), write, activity.urgent):
        yield
    with app[keys.HEALTH].duty(HealthPart.SESSION_ACTIVITY):
        await write()


async def _outbox(app: web.Application) -> AsyncIterator[None]:
    store = app[keys.STORE]

    async def hand_on() -> None:
        if not await store.read(outbox.is_empty):
            app[keys.EVENTS].publish(await store.write(outbox.take))

    async with _every(app, HealthPart.OUTBOX, OUTBOX_INTERVAL_SECONDS, hand_on):
        yield


@contextlib.asynccontextmanager
async def _every(
    app: web.Application,
    part: HealthPart,
    seconds: float,
    duty: Callable[[], Awaitable[None]],
    early: asyncio.Event | None = None,
) -> AsyncIterator[None]:
    """Run ``duty`` again and again while the block lasts, and at once whenever ``early`` is set.

    Whether it does well is a ``part`` of health. One that failed is tried again soon.
    """
    health, early = app[keys.HEALTH], early or asyncio.Event()

    async def repeat() -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(early.wait(), min(seconds, RETRY_SECONDS) if part in health.faults else seconds)
            early.clear()
            with health.duty(part):
                await duty()

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
