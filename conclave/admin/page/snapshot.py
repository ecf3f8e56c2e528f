"""Reads the data of the store for the operators' page, at most every few seconds."""

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
"""The rules by which messages are erased. Sessions and invites are not shown."""

FRESH_SECONDS = 3.0
"""How long data is reused."""

READ_SHARE = 20
"""Reads take at most a twentieth of a reader's time: after a slow one the next is delayed."""

WAIT_SECONDS = 1.0
"""The longest wait for new data, if there is earlier data."""

LATE_SECONDS = 5.0
"""A read of 5 seconds is a fault. It is also the longest wait for the first data."""


class PageSnapshot:
    """Reads the store of one server.

    ``last``: the last data; None before the first. ``chart`` and ``advice``: derived from the history of runs.
    ``fault``: why the last read failed, or "". ``renewed_ends``: the Unix second at which the certificate in its file
    expires, which may be newer than the certificate in use; None without a certificate.
    """

    def __init__(self, client_app: web.Application) -> None:
        """``client_app``: the clients' application."""
        self._client_app = client_app
        self.last: Overview | None = None
        self.chart: Chart | None = None
        self.advice: list[Advice] = []
        self.fault = ""
        self.renewed_ends: int | None = None
        self._read_started = self._next_read_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def expire(self) -> None:
        """Read again at the next request."""
        self._next_read_at = 0.0

    async def refresh(self) -> None:
        """Read again if it is time. Wait only briefly, so that the page works while the store hangs."""
        if self._task is None or self._task.done():
            if time.monotonic() < self._next_read_at:
                return
            self._read_started = time.monotonic()
            self._task = asyncio.create_task(self._read())
        await asyncio.wait({self._task}, timeout=WAIT_SECONDS if self.last else LATE_SECONDS)
        waited = time.monotonic() - self._read_started
        if self._task.done():
            self._task.result()
        elif self.last is None or waited >= LATE_SECONDS:
            self.fault = f"the store has not answered for {about(round(waited))}"

    async def close(self) -> None:
        """Stop reading."""
        if self._task:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _read(self) -> None:
        if self._client_app[app_keys.HEALTH].phase is not Phase.SERVING:
            self.fault = "the server is starting or stopping"
            return
        start = time.monotonic()
        config = self._client_app[app_keys.CONFIG]
        now = self._client_app[app_keys.CLOCK].now()
        jobs = schedule(config.retention.purge_jobs, config.cleanup_interval)
        path = config.tls_cert_path

        def read(connection: sqlite3.Connection) -> tuple[Overview, Chart | None, list[Advice]]:
            """Run in the reader's thread, since processing 1,000 runs would block the event loop."""
            data = overview.read_overview(connection, jobs, now)
            amounts = (DataPoint(each.started_at, each.deleted) for each in data.runs)
            return data, stacked_chart(amounts, RULES, now), runs.advices(data.runs, jobs, now)

        try:
            self.last, self.chart, self.advice = await self._client_app[app_keys.STORE].read(read)
            self.fault = ""
        except (StoreError, sqlite3.Error, ValueError) as error:  # ValueError: the store has been closed
            self.fault = str(error)
        self.renewed_ends = await asyncio.to_thread(certificate.expiry, path)
        end = time.monotonic()
        self._next_read_at = end + max(FRESH_SECONDS, READ_SHARE * (end - start))
