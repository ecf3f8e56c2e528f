"""What the server does beside its requests, again and again; how each duty fares is a part of health."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from conclave import keys
from conclave.archive.reader import ArchiveError
from conclave.health.clock_watch import ClockWatch
from conclave.health.parts import HealthPart
from conclave.logs import get_logger
from conclave.retention.policy import session_lag
from conclave.store import news, outbox, sessions, state
from conclave.store.archive import stretches
from conclave.store.faults import StoreError

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


async def look_at_storage(app: web.Application) -> AsyncIterator[None]:
    """Know how the disk fares, and whether what failed works again."""
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


async def try_archive(app: web.Application) -> AsyncIterator[None]:
    """Open the archive beside the start, and try one that could not be read."""
    reader, health = app[keys.ARCHIVE], app[keys.HEALTH]

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


async def stay_alive(app: web.Application) -> AsyncIterator[None]:
    """Note in the store that the server is alive, and watch the clock."""
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


async def keep_sessions(app: web.Application) -> AsyncIterator[None]:
    """Write when sessions were used: a minute late at most, many at a time."""
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


async def forward_news(app: web.Application) -> AsyncIterator[None]:
    """Hand on what other processes have left in the outbox."""
    store = app[keys.STORE]

    async def hand_on() -> None:
        if not await store.read(outbox.is_empty):
            await store.write(news.forward)

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
