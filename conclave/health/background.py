"""Runs the background duties of a server: no error ends one, and health shows each that fails.

Whatever repeats while the server runs is started here. A task or a timer that repeats by itself would end with the
first unexpected error, and health would not show it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from conclave.health.parts import Health, HealthPart

RETRY_SECONDS = 1.0
"""A duty that has failed is tried again after at most 1 second."""

Duty = Callable[[], Awaitable[None]]


async def keep_running(health: Health, part: HealthPart, work: Duty) -> None:
    """Run ``work`` until it returns. Whenever it raises, ``part`` of health fails, and it is started again.

    It starts RETRY_SECONDS later. ``work`` itself says when the part works again.
    """
    while True:
        try:
            return await work()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever it is, health shows it
            health.record_failure(part, error)
        await asyncio.sleep(RETRY_SECONDS)


@contextlib.asynccontextmanager
async def running(health: Health, part: HealthPart, work: Duty) -> AsyncIterator[None]:
    """Do as ``keep_running`` while the block lasts."""
    task = asyncio.create_task(keep_running(health, part, work))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})  # awaited itself, it would hide a cancellation of the caller


@contextlib.asynccontextmanager
async def every(
    health: Health, part: HealthPart, seconds: float, duty: Duty, early: asyncio.Event | None = None
) -> AsyncIterator[None]:
    """Run ``duty`` every ``seconds`` while the block lasts, and at once whenever ``early`` is set.

    Its success or failure is the ``part`` of health. A duty that has failed is tried again within RETRY_SECONDS.
    """
    wanted = early or asyncio.Event()

    async def repeat() -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                # wait_for loses a cancellation that comes together with what it waits for.
                async with asyncio.timeout(min(seconds, RETRY_SECONDS) if part in health.faults else seconds):
                    await wanted.wait()
            wanted.clear()
            with health.duty(part):
                await duty()

    async with running(health, part, repeat):
        yield
