"""The periodic background duties of the server. Each has a part of health."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from dataclasses import asdict

from aiohttp import web

from conclave import app_keys
from conclave.actions import invites, members, timers
from conclave.archive.reader import ArchiveError
from conclave.config.warnings import find_warnings, unknown_group
from conclave.errors import UntrustedClockError
from conclave.failpoints import reach
from conclave.health import background
from conclave.health.clock_watch import ClockWatch
from conclave.health.parts import Health, HealthPart
from conclave.logs.setup import get_logger
from conclave.retention import marks, rehearsal, stretches
from conclave.retention.durations import duration_text
from conclave.retention.jobs import schedule
from conclave.retention.policy import session_lag
from conclave.store.engine import news
from conclave.store.engine.faults import StoreError
from conclave.store.resources import sessions, state
from conclave.store.views import overdue, runs
from conclave.store.views.overdue import OverdueTotal

log = get_logger(__name__)

ALIVE_INTERVAL_SECONDS = 5.0
"""The time is stored every 5 seconds while the server runs. The retention contract allows at most 10."""

CLOCK_INTERVAL_SECONDS = 1.0
"""Every second the server checks whether another process found a clock fault, or accepted the clock."""

OUTBOX_INTERVAL_SECONDS = 1.0
TIMERS_INTERVAL_SECONDS = 0.25
"""The server checks for ended timers four times a second. Readers are notified within a second."""

MAX_START_SECONDS = 2.0
"""A start spends at most 2 seconds on notifying readers. The rest follows while the server serves.

The messages are hidden from clients in any case.
"""

JOINS_INTERVAL_SECONDS = 1.0
"""The server checks every second for joins that were not completed in time."""

STORAGE_INTERVAL_SECONDS = 0.5

OVERDUE_INTERVAL_SECONDS = 60.0
"""The server checks every minute for messages that should have been erased."""

OVERDUE_SHARE = 100
"""The check uses at most a hundredth of a reader's time: after a slow one the next is delayed."""

RUNS_INTERVAL_SECONDS = 1.0
"""The server checks every second for runs of other processes."""

ARCHIVE_RETRY_SECONDS = 10.0
"""An archive that cannot be read is retried every 10 seconds, even without requests."""


async def watch_storage(app: web.Application) -> AsyncIterator[None]:
    """Check the disk, and probe a store that has failed."""
    store, storage = app[app_keys.STORE], app[app_keys.STORAGE]

    async def check() -> None:
        await asyncio.to_thread(storage.check)
        storage.report()
        if storage.has_failed:
            # An idle server has no requests that would show that it works again.
            await store.read(state.stored_policy)
            await store.write(state.probe)

    async def check_quietly() -> None:
        with contextlib.suppress(StoreError):  # storage has recorded it
            await check()

    await check_quietly()
    async with _every(app, HealthPart.STORAGE_WATCH, STORAGE_INTERVAL_SECONDS, check_quietly):
        yield


async def watch_archive(app: web.Application) -> AsyncIterator[None]:
    """Open the archive when the server starts, and retry one that could not be read.

    So a missing folder is detected before a request or a run needs it.
    """
    reader, health = app[app_keys.ARCHIVE], app[app_keys.HEALTH]

    async def open_archive() -> None:
        with contextlib.suppress(ArchiveError):  # already in health and in the log
            await reader.warm_up()

    async def retry() -> None:
        with contextlib.suppress(StoreError):  # watch_storage reports it
            is_at_fault = HealthPart.ARCHIVE in health.faults
            if is_at_fault or (await app[app_keys.STORE].read(stretches.must_exist) and await reader.is_missing()):
                await open_archive()

    # The start does not wait for the archive: new messages can be read without it.
    async with contextlib.AsyncExitStack() as stack:
        if await app[app_keys.STORE].read(stretches.must_exist):
            await stack.enter_async_context(background.running(health, HealthPart.ARCHIVE_WATCH, open_archive))
        await stack.enter_async_context(_every(app, HealthPart.ARCHIVE_WATCH, ARCHIVE_RETRY_SECONDS, retry))
        yield


async def record_alive(app: web.Application) -> AsyncIterator[None]:
    """Store regularly that the server is running, and check the clock."""
    health = app[app_keys.HEALTH]
    app[app_keys.CLOCK_WATCH] = watch = ClockWatch(
        app[app_keys.CLOCK], app[app_keys.STORE], health, app[app_keys.ACTIVITY]
    )
    config = app[app_keys.CONFIG]
    policy = config.policy
    await watch.begin(policy, accepts_change=app[app_keys.ACCEPTS_CHANGE])
    for warning in find_warnings(config, await app[app_keys.STORE].read(marks.policies_under, policy)):
        log.warning("doubtful_setting", **warning._asdict())
    for group_id in await app[app_keys.STORE].read(rehearsal.unknown_groups, policy):
        log.warning("doubtful_setting", **unknown_group(group_id)._asdict())
    async with (
        _every(app, HealthPart.ALIVE, ALIVE_INTERVAL_SECONDS, watch.record),
        _every(app, HealthPart.CLOCK_WATCH, CLOCK_INTERVAL_SECONDS, watch.check),
    ):
        yield
    with health.duty(HealthPart.ALIVE):
        await watch.record(stopping=True)


async def store_session_activity(app: web.Application) -> AsyncIterator[None]:
    """Store when sessions were used: at most a minute late, in batches."""
    ttl, activity = app[app_keys.CONFIG].token_ttl_seconds, app[app_keys.ACTIVITY]

    async def write() -> None:
        for session_id in app[app_keys.EVENTS].sessions():
            # A stream records its use when it writes, which it cannot while its client reads nothing.
            activity.extend(session_id, app[app_keys.CLOCK].now())
        uses = activity.unstored()
        if uses:
            await app[app_keys.STORE].write(sessions.extend, uses, ttl, app[app_keys.CLOCK])
            app[app_keys.SESSIONS].drop_extended(uses)
            activity.mark_stored(uses)

    async with _every(app, HealthPart.SESSION_ACTIVITY, session_lag(ttl), write, activity.urgent):
        yield
    with app[app_keys.HEALTH].duty(HealthPart.SESSION_ACTIVITY):
        await write()


async def forward_outbox(app: web.Application) -> AsyncIterator[None]:
    """Publish the news of other processes from the outbox, and unblock logins on an operator's order.

    First withdraw invites that a restore brought back although their inviters may no longer invite.
    """
    store = app[app_keys.STORE]
    await store.write(invites.withdraw_all)

    async def forward() -> None:
        app[app_keys.FRESHNESS].refresh()  # even without requests, so that erased messages leave the cache
        if not await store.read(news.is_empty):
            for username in await store.write(news.forward):
                app[app_keys.THROTTLE].unblock(username)

    async with _every(app, HealthPart.OUTBOX, OUTBOX_INTERVAL_SECONDS, forward):
        yield


async def notify_redactions(app: web.Application) -> AsyncIterator[None]:
    """Notify readers of messages that self-destructed or were taken back, starting with those from before the start.

    Visibility does not depend on it. A reader who was offline has a stored record until a stream has delivered the
    event.
    """
    store, context, notifier = app[app_keys.STORE], app[app_keys.CONTEXT], app[app_keys.REDACTION_NOTIFIER]

    async def check(seconds: float = math.inf) -> None:
        await record_delivered()
        unannounced = await store.read(timers.unannounced, context)
        if unannounced.taken_back:
            await notify_taken_back(time.monotonic() + seconds)
        if unannounced.timers:
            with contextlib.suppress(UntrustedClockError):  # already in health and in the log
                await notify_timers(time.monotonic() + seconds)

    async def notify_taken_back(until: float) -> None:
        has_more = True
        while has_more and time.monotonic() < until:
            notifier.publish(await store.write(timers.announce_taken_back))
            reach("taken_back.published")
            await record_delivered()
            has_more = (await store.read(timers.unannounced, context)).taken_back

    async def notify_timers(until: float) -> None:
        ended_count = 1
        while ended_count and time.monotonic() < until:
            ended_count, redactions = await app[app_keys.CLOCK_WATCH].write(timers.announce_ended, context)
            notifier.publish(redactions)
            reach("timers.published")
            await record_delivered()

    async def record_delivered() -> None:
        while deliveries := notifier.delivered:
            await store.write(timers.confirm_notified, deliveries)
            notifier.forget(deliveries)

    with app[app_keys.HEALTH].duty(HealthPart.TIMERS):
        notifier.begin(await store.read(timers.last_missed))
        await check(MAX_START_SECONDS)
    async with _every(app, HealthPart.TIMERS, TIMERS_INTERVAL_SECONDS, check):
        yield
    with app[app_keys.HEALTH].duty(HealthPart.TIMERS):
        await record_delivered()


async def end_overdue_joins(app: web.Application) -> AsyncIterator[None]:
    """End memberships that were not completed in time, see ``members.undo_overdue_joins``.

    Requests do not depend on it: they do not treat an overdue joiner as a member.
    """
    store, context = app[app_keys.STORE], app[app_keys.CONTEXT]

    async def undo() -> None:
        while await store.read(members.are_joins_overdue, context):
            await store.write(members.undo_overdue_joins, context)

    async with _every(app, HealthPart.JOINS, JOINS_INTERVAL_SECONDS, undo):
        yield


async def record_runs(app: web.Application) -> AsyncIterator[None]:
    """Record cleanup runs of other processes in health: commands, timers, spark-submit."""
    store, health = app[app_keys.STORE], app[app_keys.HEALTH]
    last_recorded = await store.read(runs.newest)

    async def check() -> None:
        nonlocal last_recorded
        newest = await store.read(runs.newest)
        if newest != last_recorded:
            for each in await store.read(runs.after, last_recorded):
                health.record_run(asdict(each))
            last_recorded = newest

    async with _every(app, HealthPart.RUN_HISTORY, RUNS_INTERVAL_SECONDS, check):
        yield


async def watch_overdue(app: web.Application) -> AsyncIterator[None]:
    """Report to health if two runs failed to erase due messages.

    While the clock is wrong nothing is erased, and ages are unknown: health then reports the clock only.
    """
    config = app[app_keys.CONFIG]
    jobs = schedule(config.retention.purge_jobs, config.cleanup_interval)
    store, health, clock = app[app_keys.STORE], app[app_keys.HEALTH], app[app_keys.CLOCK]
    next_check = 0.0

    async def check() -> None:
        nonlocal next_check
        began_at = time.monotonic()
        if HealthPart.CLOCK in health.faults:
            health.clear_fault(HealthPart.OVERDUE)
        elif began_at >= next_check:
            health.overdue, total = await store.read(overdue.with_late, jobs, clock.now())
            next_check = began_at + OVERDUE_SHARE * (time.monotonic() - began_at)
            _report_overdue(health, total)

    async with _every(app, HealthPart.OVERDUE_WATCH, OVERDUE_INTERVAL_SECONDS, check):
        yield


def _report_overdue(health: Health, total: OverdueTotal) -> None:
    """Report to health, and to the log on a change. Neither gets names or ids of groups."""
    was_overdue = HealthPart.OVERDUE in health.faults
    if not total.groups:
        health.clear_fault(HealthPart.OVERDUE)
        if was_overdue:
            log.info("overdue_erased")
        return
    if not was_overdue:
        log.error("erasure_overdue", groups=total.groups, seconds=total.seconds)
    since = duration_text(total.seconds - total.seconds % 60 if total.seconds > 60 else total.seconds)
    health.set_fault(
        HealthPart.OVERDUE,
        f"two runs should have erased messages of {total.groups:,} group{'' if total.groups == 1 else 's'} by now,"
        f" the first was due {since} ago:"
        " `conclave group list --overdue` lists the groups, `conclave cleanup history` the runs",
    )


def _every(
    app: web.Application, part: HealthPart, seconds: float, duty: background.Duty, early: asyncio.Event | None = None
) -> contextlib.AbstractAsyncContextManager[None]:
    return background.every(app[app_keys.HEALTH], part, seconds, duty, early)
