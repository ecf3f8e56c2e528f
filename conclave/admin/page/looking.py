"""Looks at the store for the operators' page: at most every few seconds, whoever asks how often."""

import asyncio
import sqlite3
import time
from pathlib import Path

from aiohttp import web

from conclave import keys
from conclave.health.parts import Phase
from conclave.retention.jobs import schedule
from conclave.store import overview
from conclave.store.faults import StoreError
from conclave.store.overview import Overview
from conclave.system import certificate

FRESH_SECONDS = 3.0
"""What was seen is shown for 3 seconds."""

SHARE = 20
"""Looks take at most a twentieth of the time of a reader: after one that was slow the next one comes later."""

WAIT_SECONDS = 1.0
"""Who asks waits at most a second for a new look, if there was one before."""


class Looking:
    """Looks at the store of one server. ``last``: what was seen; None before the first time."""

    def __init__(self, served: web.Application) -> None:
        """``served``: the clients' application."""
        self._served = served
        self.last: Overview | None = None
        self.fault = ""
        self.certificate_ends: int | None = None
        self._next = 0.0
        self._task: asyncio.Task[None] | None = None

    def expire(self) -> None:
        """Look again when somebody asks next: something has changed."""
        self._next = 0.0

    async def refresh(self) -> None:
        """Look anew if it is time; wait for it, but not for long if there is something to show."""
        if self._task is None or self._task.done():
            if time.monotonic() < self._next:
                return
            self._task = asyncio.create_task(self._look())
        await asyncio.wait({self._task}, timeout=WAIT_SECONDS if self.last else None)
        if self._task.done():
            self._task.result()

    async def close(self) -> None:
        """Look no more."""
        if self._task:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _look(self) -> None:
        if self._served[keys.HEALTH].phase is not Phase.SERVING:
            self.fault = "the server does not serve: it starts, or it stops"
            return
        began = time.monotonic()
        config = self._served[keys.IN_FORCE].config
        policy, now = self._served[keys.CONTEXT].policy, self._served[keys.CLOCK].now()
        jobs = schedule(config.retention.purge_jobs, config.cleanup_interval)
        path = config.tls_cert_path
        try:
            self.last = await self._served[keys.STORE].read(overview.look, policy, jobs, now)
            self.fault = ""
        except (StoreError, sqlite3.Error, ValueError) as error:  # ValueError: the store has been closed meanwhile
            self.fault = str(error)
        self.certificate_ends = await asyncio.to_thread(certificate.expires_at, Path(path)) if path else None
        ended = time.monotonic()
        self._next = ended + max(FRESH_SECONDS, SHARE * (ended - began))
