"""The operators' listener: page, health, readiness, metrics. On loopback by default.

``guard`` checks all requests, so new pages only have to add routes.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from conclave import app_keys
from conclave.admin.access import IS_OPERATOR, Guard
from conclave.admin.metrics import SAMPLE_INTERVAL_SECONDS, LoopLag, registry
from conclave.admin.page.actions import CleanupWorker, PageActions
from conclave.admin.page.routes import OperatorPage
from conclave.admin.sizes import Sizes
from conclave.health import background
from conclave.health.parts import HealthPart
from conclave.health.readiness import Readiness, readiness_of
from conclave.wire.response_head import HEADERS

CLIENT_APP = web.AppKey("client_app", web.Application)
"""The clients' application. While it runs, its resources are open."""

LAG = web.AppKey("lag", LoopLag)
SIZES = web.AppKey("sizes", Sizes)
METRICS = web.AppKey("metrics", CollectorRegistry)
SCRAPE = web.AppKey("scrape", asyncio.Lock)
"""Held during a scrape: only one runs at a time."""


def create_admin_app(client_app: web.Application, guard: Guard, worker: CleanupWorker | None = None) -> web.Application:
    """Build the operators' application. ``client_app``: the clients' application. ``worker``: runs cleanup, if any."""
    app = web.Application(middlewares=[guard.middleware()])
    app[CLIENT_APP] = client_app
    app[app_keys.CLOCK], app[app_keys.HEALTH] = client_app[app_keys.CLOCK], client_app[app_keys.HEALTH]
    app[LAG] = lag = LoopLag()
    app[SIZES] = sizes = Sizes(client_app)
    app[METRICS] = registry(client_app, lag, sizes, guard)
    app[SCRAPE] = asyncio.Lock()
    app.cleanup_ctx.append(_measure_lag)
    app.router.add_get("/healthz", _health)
    app.router.add_get("/readyz", _ready)
    app.router.add_get("/metrics", _metrics)
    OperatorPage(client_app, sizes, PageActions(client_app, worker)).add_routes(app)
    return app


async def _measure_lag(app: web.Application) -> AsyncIterator[None]:
    health = app[app_keys.HEALTH]
    async with background.every(health, HealthPart.EVENT_LOOP_LAG, SAMPLE_INTERVAL_SECONDS, app[LAG].measure):
        yield
    await app[SIZES].close()


async def _health(request: web.Request) -> web.Response:
    """GET /healthz: 200 without faults, else 503. Operators also get the faults, the last run and the worker."""
    health = request.app[CLIENT_APP][app_keys.HEALTH]
    values: dict[str, Any] = {"status": health.status}
    if request[IS_OPERATOR]:
        values |= {"faults": health.faults, "last_run": health.last_run, "cleanup": health.cleanup}
    return _answer(values, is_good=not health.faults)


async def _ready(request: web.Request) -> web.Response:
    """GET /readyz: 200 if the server is ready, else 503 with a one-word reason."""
    client_app = request.app[CLIENT_APP]
    status = readiness_of(client_app[app_keys.HEALTH], client_app.get(app_keys.STORAGE))
    return _answer({"status": status}, is_good=status is Readiness.READY)


async def _metrics(request: web.Request) -> web.Response:
    """GET /metrics: the metrics in the text format of Prometheus."""
    await request.app[SIZES].refresh()
    async with request.app[SCRAPE]:
        body = await asyncio.to_thread(generate_latest, request.app[METRICS])
    return web.Response(body=body, headers={**HEADERS, "Content-Type": CONTENT_TYPE_LATEST})


def _answer(values: dict[str, Any], *, is_good: bool) -> web.Response:
    return web.json_response(values, status=200 if is_good else 503, headers=HEADERS)
