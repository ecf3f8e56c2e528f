"""What the operators' page shows of the store: read at most every few seconds, however many ask."""

import asyncio
import sqlite3
import time

from aiohttp import web

from conclave import app_keys
from conclave.admin.page.charts import Chart, DataPoint, stacked_chart
from conclave.health.parts import Phase
from conclave.logs.lines import about
from conclave.retention.advice import Advice
from conclave.retention.jobs import schedule
from conclave.store.engine.faults import StoreError
from conclave.store.views import overview, runs
from conclave.store.views.overview import Overview
from conclave.system import certificate

RULES = ("expired", "fetched", "redacted", "taken_back", "deleted_group", "deleted_account")
"""The reasons for which messages go. Sessions and invites are not shown: no operator asks for them by night."""

FRESH_SECONDS = 3.0
"""What was seen is shown for 3 seconds."""

SHARE = 20
"""Looks take at most a twentieth of the time of a reader: after one that was slow the next one comes later."""

WAIT_SECONDS = 1.0
"""Who asks waits at most a second for a new look, if there was one before."""

LATE_SECONDS = 5.0
"""A look that lasts for 5 seconds is a fault: a reader of the page waits no longer for the first one either."""


class PageSnapshot:
    """Looks at the store of one server.

    ``last``: what was seen; None before the first time. ``chart`` and ``advice``: what the history of runs shows.
    ``fault``: why it could not be seen anew; "" if it could. ``renewed_ends``: the Unix second until which the
    certificate in its file is valid, which need not be the one that handshakes get; None: there is none.
    """

    def __init__(self, served: web.Application) -> None:
        """``served``: the clients' application."""
        self._served = served
        self.last: Overview | None = None
        self.chart: Chart | None = None
        self.advice: list[Advice] = []
        self.fault = ""
        self.renewed_ends: int | None = None
        self._began = self._next = 0.0
        self._task: asyncio.Task[None] | None = None

    def expire(self) -> None:
        """Look again at the next request: something has changed."""
        self._next = 0.0

    async def refresh(self) -> None:
        """Look anew if it is time; wait for it, but not for long: what works has to be shown while the store hangs."""
        if self._task is None or self._task.done():
            if time.monotonic() < self._next:
                return
            self._began = time.monotonic()
            self._task = asyncio.create_task(self._look())
        await asyncio.wait({self._task}, timeout=WAIT_SECONDS if self.last else LATE_SECONDS)
        waited = time.monotonic() - self._began
        if self._task.done():
            self._task.result()
        elif self.last is None or waited >= LATE_SECONDS:
            self.fault = f"the store has not answered for {about(round(waited))}"

    async def close(self) -> None:
        """Look no more."""
        if self._task:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _look(self) -> None:
        if self._served[app_keys.HEALTH].phase is not Phase.SERVING:
            self.fault = "the server does not serve: it starts, or it stops"
            return
        began = time.monotonic()
        config = self._served[app_keys.CONFIG]
        now = self._served[app_keys.CLOCK].now()
        jobs = schedule(config.retention.purge_jobs, config.cleanup_interval)
        path = config.tls_cert_path

        def look(connection: sqlite3.Connection) -> tuple[Overview, Chart | None, list[Advice]]:
            """In the reader's thread: what is made of 1,000 runs need not hold up the event loop."""
            seen = overview.read_overview(connection, jobs, now)
            amounts = (DataPoint(each.started_at, each.deleted) for each in seen.runs)
            return seen, stacked_chart(amounts, RULES, now), runs.advices(seen.runs, jobs, now)

        try:
            self.last, self.chart, self.advice = await self._served[app_keys.STORE].read(look)
            self.fault = ""
        except (StoreError, sqlite3.Error, ValueError) as error:  # ValueError: the store has been closed meanwhile
            self.fault = str(error)
        self.renewed_ends = await asyncio.to_thread(certificate.expiry, path)
        ended = time.monotonic()
        self._next = ended + max(FRESH_SECONDS, SHARE * (ended - began))
