"""The server's repeated background duties. Each has its part of health."""

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
from conclave.config.warnings import doubts, of_unknown_group
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
"""Every 5 seconds the store learns that the server is alive. The retention contract allows at most 10 s."""

CLOCK_INTERVAL_SECONDS = 1.0
"""Every second the server looks what other processes found wrong with the clock, or accepted."""

OUTBOX_INTERVAL_SECONDS = 1.0
TIMERS_INTERVAL_SECONDS = 0.25
"""Readers hear within a second that a message has come to its end for them: four times a second the server looks."""

MAX_START_SECONDS = 2.0
"""A start waits for at most 2 seconds until all is told that ended meanwhile. The rest is told while the server serves.

No client sees the messages in any case.
"""

JOINS_INTERVAL_SECONDS = 1.0
"""Every second the server looks for joins that were not completed in time."""

STORAGE_INTERVAL_SECONDS = 0.5

OVERDUE_INTERVAL_SECONDS = 60.0
"""Every minute the server looks for what runs should have erased."""

OVERDUE_SHARE = 100
"""Such looks take at most a hundredth of the time of a reader: after one that was slow, the next one comes later."""

RUNS_INTERVAL_SECONDS = 1.0
"""Every second the server looks for runs that others have done."""

ARCHIVE_RETRY_SECONDS = 10.0
"""Every 10 seconds an archive that could not be read is tried again, even without requests for it."""


async def watch_storage(app: web.Application) -> AsyncIterator[None]:
    """Watch the disk, and find out whether a store that has failed works again."""
    store, storage = app[app_keys.STORE], app[app_keys.STORAGE]

    async def look() -> None:
        await asyncio.to_thread(storage.look)
        storage.report()
        if storage.has_failed:
            # Only a try shows whether it works again, and on an idle server no request tries.
            await store.read(state.stored_policy)
            await store.write(state.probe)

    async def quietly() -> None:
        with contextlib.suppress(StoreError):  # storage knows of it already
            await look()

    await quietly()
    async with _every(app, HealthPart.STORAGE_WATCH, STORAGE_INTERVAL_SECONDS, quietly):
        yield


async def watch_archive(app: web.Application) -> AsyncIterator[None]:
    """Open the archive while the server starts, and retry one that could not be read.

    One whose folder has gone is found before a request reads there, and before something is due there.
    """
    reader, health = app[app_keys.ARCHIVE], app[app_keys.HEALTH]

    async def try_out() -> None:
        with contextlib.suppress(ArchiveError):  # health and the log know of it already
            await reader.warm_up()

    async def try_again() -> None:
        with contextlib.suppress(StoreError):  # the watch of the storage tells of that
            is_at_fault = HealthPart.ARCHIVE in health.faults
            if is_at_fault or (await app[app_keys.STORE].read(stretches.is_to_be_there) and await reader.is_away()):
                await try_out()

    # The start does not wait for it: new messages can be read without the archive.
    async with contextlib.AsyncExitStack() as started:
        if await app[app_keys.STORE].read(stretches.is_to_be_there):
            await started.enter_async_context(background.running(health, HealthPart.ARCHIVE_WATCH, try_out))
        await started.enter_async_context(_every(app, HealthPart.ARCHIVE_WATCH, ARCHIVE_RETRY_SECONDS, try_again))
        yield


async def record_alive(app: web.Application) -> AsyncIterator[None]:
    """Note in the store that the server is alive, and watch the clock."""
    health = app[app_keys.HEALTH]
    app[app_keys.CLOCK_WATCH] = watch = ClockWatch(
        app[app_keys.CLOCK], app[app_keys.STORE], health, app[app_keys.ACTIVITY]
    )
    config = app[app_keys.CONFIG]
    policy = config.policy
    await watch.begin(policy, accepts_change=app[app_keys.ACCEPTS_CHANGE])
    for doubt in doubts(config, await app[app_keys.STORE].read(marks.given, policy)):
        log.warning("doubtful_setting", **doubt._asdict())
    for group_id in await app[app_keys.STORE].read(rehearsal.unknown_groups, policy):
        log.warning("doubtful_setting", **of_unknown_group(group_id)._asdict())
    async with (
        _every(app, HealthPart.ALIVE, ALIVE_INTERVAL_SECONDS, watch.note),
        _every(app, HealthPart.CLOCK_WATCH, CLOCK_INTERVAL_SECONDS, watch.look),
    ):
        yield
    with health.duty(HealthPart.ALIVE):
        await watch.note(stopping=True)


async def store_session_activity(app: web.Application) -> AsyncIterator[None]:
    """Store when sessions were used: at most a minute late, many in one transaction."""
    ttl, activity = app[app_keys.CONFIG].token_ttl_seconds, app[app_keys.ACTIVITY]

    async def write() -> None:
        for session_id in app[app_keys.EVENTS].sessions():
            # A stream notes its use when it writes. It cannot write while its client takes nothing.
            activity.keep(session_id, app[app_keys.CLOCK].now())
        uses = activity.unwritten()
        if uses:
            await app[app_keys.STORE].write(sessions.extend, uses, ttl, app[app_keys.CLOCK])
            app[app_keys.SESSIONS].forget_extended(uses)
            activity.written(uses)

    async with _every(app, HealthPart.SESSION_ACTIVITY, session_lag(ttl), write, activity.urgent):
        yield
    with app[app_keys.HEALTH].duty(HealthPart.SESSION_ACTIVITY):
        await write()


async def forward_outbox(app: web.Application) -> AsyncIterator[None]:
    """Announce what other processes have left in the outbox, and unblock the logins that operators have named.

    First withdraw the invites whose inviters may not invite any more, which a restore has left.
    """
    store = app[app_keys.STORE]
    await store.write(invites.withdraw_all)

    async def hand_on() -> None:
        app[app_keys.FRESHNESS].look()  # without requests too: what was erased goes from memory all the same
        if not await store.read(news.is_empty):
            for username in await store.write(news.forward):
                app[app_keys.THROTTLE].unblock(username)

    async with _every(app, HealthPart.OUTBOX, OUTBOX_INTERVAL_SECONDS, hand_on):
        yield


async def notify_redactions(app: web.Application) -> AsyncIterator[None]:
    """Tell readers what has destroyed itself or was taken back: first what did so meanwhile.

    What readers see does not wait for this. The note that a reader has missed it goes once a stream of theirs had it.
    """
    store, context, telling = app[app_keys.STORE], app[app_keys.CONTEXT], app[app_keys.TELLING]

    async def look(seconds: float = math.inf) -> None:
        await note_heard()
        waiting = await store.read(timers.look, context)
        if waiting.taken_back:
            await tell_taken_back(time.monotonic() + seconds)
        if waiting.timers:
            with contextlib.suppress(UntrustedClockError):  # health and the log know of it already
                await tell(time.monotonic() + seconds)

    async def tell_taken_back(until: float) -> None:
        is_any = True
        while is_any and time.monotonic() < until:
            telling.publish(await store.write(timers.tell_taken_back))
            reach("taken_back.published")
            await note_heard()
            is_any = (await store.read(timers.look, context)).taken_back

    async def tell(until: float) -> None:
        ended = 1
        while ended and time.monotonic() < until:
            ended, told = await app[app_keys.CLOCK_WATCH].write(timers.tell, context)
            telling.publish(told)
            reach("timers.published")
            await note_heard()

    async def note_heard() -> None:
        while heard := telling.heard:
            await store.write(timers.confirm_notified, heard)
            telling.forget(heard)

    with app[app_keys.HEALTH].duty(HealthPart.TIMERS):
        telling.begin(await store.read(timers.last_missed))
        await look(MAX_START_SECONDS)
    async with _every(app, HealthPart.TIMERS, TIMERS_INTERVAL_SECONDS, look):
        yield
    with app[app_keys.HEALTH].duty(HealthPart.TIMERS):
        await note_heard()


async def end_overdue_joins(app: web.Application) -> AsyncIterator[None]:
    """End memberships that were not completed in time, see ``members.undo_overdue_joins``.

    Requests do not depend on this: they do not count an overdue joiner as a member.
    """
    store, context = app[app_keys.STORE], app[app_keys.CONTEXT]

    async def undo() -> None:
        while await store.read(members.are_joins_overdue, context):
            await store.write(members.undo_overdue_joins, context)

    async with _every(app, HealthPart.JOINS, JOINS_INTERVAL_SECONDS, undo):
        yield


async def record_runs(app: web.Application) -> AsyncIterator[None]:
    """Have health note the cleanup runs that others do while the server runs: operators, timers, spark-submit."""
    store, health = app[app_keys.STORE], app[app_keys.HEALTH]
    seen = await store.read(runs.newest)

    async def look() -> None:
        nonlocal seen
        newest = await store.read(runs.newest)
        if newest != seen:
            for each in await store.read(runs.after, seen):
                health.note_run(asdict(each))
            seen = newest

    async with _every(app, HealthPart.RUN_HISTORY, RUNS_INTERVAL_SECONDS, look):
        yield


async def watch_overdue(app: web.Application) -> AsyncIterator[None]:
    """Tell health if groups have something that two runs should have erased.

    While the clock is wrong nothing is erased, and no time tells how long. Health tells of the clock then, not of this.
    """
    config = app[app_keys.CONFIG]
    jobs = schedule(config.retention.purge_jobs, config.cleanup_interval)
    store, health, clock = app[app_keys.STORE], app[app_keys.HEALTH], app[app_keys.CLOCK]
    next_look = 0.0

    async def look() -> None:
        nonlocal next_look
        began = time.monotonic()
        if HealthPart.CLOCK in health.faults:
            health.mend(HealthPart.OVERDUE)
        elif began >= next_look:
            health.overdue, late = await store.read(overdue.with_late, jobs, clock.now())
            next_look = began + OVERDUE_SHARE * (time.monotonic() - began)
            _report_overdue(health, late)

    async with _every(app, HealthPart.OVERDUE_WATCH, OVERDUE_INTERVAL_SECONDS, look):
        yield


def _report_overdue(health: Health, late: OverdueTotal) -> None:
    """Tell health, and the log if it is news. Neither has names or ids of groups."""
    was_late = HealthPart.OVERDUE in health.faults
    if not late.groups:
        health.mend(HealthPart.OVERDUE)
        if was_late:
            log.info("overdue_erased")
        return
    if not was_late:
        log.error("erasure_overdue", groups=late.groups, seconds=late.seconds)
    since = duration_text(late.seconds - late.seconds % 60 if late.seconds > 60 else late.seconds)
    health.fault(
        HealthPart.OVERDUE,
        f"two runs should have erased messages of {late.groups:,} group{'' if late.groups == 1 else 's'} by now,"
        f" the first could go {since} ago:"
        " `conclave group list --overdue` names the groups, and `conclave cleanup history` says how runs went",
    )


def _every(
    app: web.Application, part: HealthPart, seconds: float, duty: background.Duty, early: asyncio.Event | None = None
) -> contextlib.AbstractAsyncContextManager[None]:
    return background.every(app[app_keys.HEALTH], part, seconds, duty, early)
