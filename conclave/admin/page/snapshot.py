"""Collects data for the operators' page: of the store, at most every few seconds, and the rate of sent messages."""

import asyncio
import sqlite3
import time
from collections import deque

from aiohttp import web

from conclave import app_keys
from conclave.admin.page.charts import Chart, DataPoint, stacked_chart
from conclave.health.parts import Phase
from conclave.logs.lines import about
from conclave.measures import Requests
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


SAMPLE_SECONDS = 5.0
"""The interval of samples of the rate of sent messages."""

WINDOW_SECONDS = 60.0

SENDS = "/api/v1/groups/{group_id}/messages"
"""The route of sends, as in the log."""


class SendRate:
    """The rate of sent messages over the last minute."""

    def __init__(self, requests: Requests) -> None:
        """``requests``: the counts of answered requests."""
        self._requests = requests
        self._counts: deque[tuple[float, int]] = deque(maxlen=int(WINDOW_SECONDS / SAMPLE_SECONDS) + 1)

    async def sample(self) -> None:
        """Take a sample. Call it every SAMPLE_SECONDS, first at the start."""
        self._counts.append((time.monotonic(), self._count()))

    @property
    def rate(self) -> float:
        """Messages per second over the last minute, or since the start if that was less than a minute ago."""
        start, first_count = self._counts[0] if self._counts else (time.monotonic(), self._count())
        return (self._count() - first_count) / max(1.0, time.monotonic() - start)

    def _count(self) -> int:
        """Return the number of successful sends so far."""
        return sum(
            sum(each.counts)
            for (method, route, status), each in self._requests.histograms().items()
            if (method, route) == ("POST", SENDS) and status < 300
        )
