"""Builds the application: its resources, middlewares and routes."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from aiohttp import web

from conclave import keys, middleware
from conclave.archive import Archive, ArchiveError
from conclave.auth import Passwords, SessionActivity
from conclave.budget import Budget
from conclave.clock import Clock, SystemClock
from conclave.config import Config
from conclave.events import Events
from conclave.health import Health
from conclave.limits import HANDOUT_SECONDS, HANDOUTS, SlidingWindow
from conclave.logs import get_logger
from conclave.policy import session_lag
from conclave.routes import add_routes
from conclave.store import archive, outbox, sessions, state
from conclave.store.database import Database, StoreError
from conclave.throttle import Throttle
from conclave.wire.exchange import MAX_BODY_BYTES

log = get_logger(__name__)

ALIVE_INTERVAL_SECONDS = 5.0
"""How often the store learns that the server is alive; the retention contract asks for 10 s at least."""

OUTBOX_INTERVAL_SECONDS = 1.0


def create_app(config: Config, clock: Clock | None = None) -> web.Application:
    """Build the server; its resources are opened when it starts."""
    around = [middleware.observe, middleware.deliver, middleware.authenticate]
    app = web.Application(middlewares=around, client_max_size=MAX_BODY_BYTES)
    app[keys.CONFIG] = config
    app[keys.CLOCK] = clock = clock or SystemClock()
    app[keys.HEALTH] = Health()
    app[keys.EVENTS] = Events()
    app[keys.PASSWORDS] = Passwords()
    app[keys.THROTTLE] = Throttle(config.limits, app[keys.PASSWORDS], clock)
    app[keys.BUDGET] = Budget(config.limits.response_bytes)
    app[keys.ACTIVITY] = SessionActivity(config.token_ttl_seconds)
    app[keys.HANDOUTS] = SlidingWindow(HANDOUTS, HANDOUT_SECONDS)
    app.on_response_prepare.append(middleware.add_headers)
    app.on_shutdown.append(_end_streams)
    add_routes(app)
    app.cleanup_ctx.extend([_store, _archive, _alive, _session_activity, _outbox])
    return app


async def _end_streams(app: web.Application) -> None:
    app[keys.EVENTS].end_all()


async def _store(app: web.Application) -> AsyncIterator[None]:
    app[keys.STORE] = await Database.open(app[keys.CONFIG].database, app[keys.EVENTS].publish)
    yield
    await app[keys.STORE].close()


async def _archive(app: web.Application) -> AsyncIterator[None]:
    app[keys.ARCHIVE] = reader = Archive(app[keys.CONFIG].archive_path, app[keys.HEALTH])

    async def warm_up() -> None:
        try:
            await reader.warm_up()
        except ArchiveError as error:
            log.error("archive_unreadable", reason=str(error))

    warming = None
    if await app[keys.STORE].read(archive.exists):
        # Beside the start, not before it: what is new can be read without the archive.
        warming = asyncio.create_task(warm_up())
    yield
    if warming:
        await warming
    await reader.close()


async def _alive(app: web.Application) -> AsyncIterator[None]:
    store, clock = app[keys.STORE], app[keys.CLOCK]
    _tell_clock(app, await store.write(state.begin_serving, app[keys.CONFIG].policy, clock.read()))

    async def note() -> None:
        _tell_clock(app, await store.write(state.still_alive, clock.read()))

    async with _every(ALIVE_INTERVAL_SECONDS, note):
        yield
    with _logged():
        await store.write(state.still_alive, clock.read(), stopping=True)


def _tell_clock(app: web.Application, fault: str) -> None:
    """Let health know of the clock; an operator accepts it from another process."""
    health = app[keys.HEALTH]
    if fault and "clock" not in health.faults:
        log.error("clock_wrong", fault=fault, remedy="conclave cleanup run --accept-clock")
        health.fault("clock", fault)
    elif not fault:
        health.mend("clock")


async def _session_activity(app: web.Application) -> AsyncIterator[None]:
    ttl, activity = app[keys.CONFIG].token_ttl_seconds, app[keys.ACTIVITY]

    async def write() -> None:
        for session_id in app[keys.EVENTS].sessions():
            # A stream tells of its use whenever it writes, which one whose client takes nothing does not.
            activity.keep(session_id, app[keys.CLOCK].now())
        uses = activity.unwritten()
        if uses:
            await app[keys.STORE].write(sessions.extend, uses, ttl)
            activity.written(uses)

    async with _every(session_lag(ttl), write, activity.urgent):
        yield
    with _logged():
        await write()


async def _outbox(app: web.Application) -> AsyncIterator[None]:
    store = app[keys.STORE]

    async def hand_on() -> None:
        if not await store.read(outbox.is_empty):
            app[keys.EVENTS].publish(await store.write(outbox.take))

    async with _every(OUTBOX_INTERVAL_SECONDS, hand_on):
        yield


@contextlib.asynccontextmanager
async def _every(
    seconds: float, duty: Callable[[], Awaitable[None]], early: asyncio.Event | None = None
) -> AsyncIterator[None]:
    """Run ``duty`` again and again while the block lasts, and at once whenever ``early`` is set."""
    early = early or asyncio.Event()

    async def repeat() -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(early.wait(), seconds)
            early.clear()
            with _logged():
                await duty()

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """Log what failed, and go on: the next time may do better, and a stop must not hang on it."""
    try:
        yield
    except (StoreError, sqlite3.Error, OSError) as error:
        log.error("background_write_failed", error=str(error))
    except Exception:
        log.exception("background_duty_failed")  # a duty that ended for good would be noticed by nobody
