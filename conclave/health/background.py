"""Runs the periodic duties of a server. Errors are reported to health, and the duty is retried.

All repeated tasks are started here. A plain task or timer would end with the first unexpected error, unnoticed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from conclave.health.parts import Health, HealthPart

RETRY_SECONDS = 1.0
"""A failed duty is retried after at most 1 second."""

Duty = Callable[[], Awaitable[None]]


async def keep_running(health: Health, part: HealthPart, work: Duty) -> None:
    """Run ``work`` until it returns. If it raises, ``part`` gets a fault, and it is restarted after RETRY_SECONDS.

    ``work`` itself clears the fault.
    """
    while True:
        try:
            return await work()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - health shows every error
            health.record_failure(part, error)
        await asyncio.sleep(RETRY_SECONDS)


@contextlib.asynccontextmanager
async def running(health: Health, part: HealthPart, work: Duty) -> AsyncIterator[None]:
    """Run ``keep_running`` for the duration of the block."""
    task = asyncio.create_task(keep_running(health, part, work))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})  # awaiting the task would hide a cancellation of the caller


@contextlib.asynccontextmanager
async def every(
    health: Health, part: HealthPart, seconds: float, duty: Duty, early: asyncio.Event | None = None
) -> AsyncIterator[None]:
    """Run ``duty`` every ``seconds`` for the duration of the block, and at once when ``early`` is set.

    Success and failure set the ``part`` of health. A failed duty is retried within RETRY_SECONDS.
    """
    wakeup = early or asyncio.Event()

    async def repeat() -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                # wait_for may lose a cancellation.
                async with asyncio.timeout(min(seconds, RETRY_SECONDS) if part in health.faults else seconds):
                    await wakeup.wait()
            wakeup.clear()
            with health.duty(part):
                await duty()

    async with running(health, part, repeat):
        yield
