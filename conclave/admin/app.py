"""The operators' listener: faults, the last cleanup run, metrics. On loopback unless configured otherwise."""

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from conclave.admin.metrics import registry
from conclave.health.parts import Health

HEALTH = web.AppKey("health", Health)
METRICS = web.AppKey("metrics", CollectorRegistry)


def create_admin_app(health: Health) -> web.Application:
    """Build the operators' application."""
    app = web.Application()
    app[HEALTH] = health
    app[METRICS] = registry(health)
    app.router.add_get("/healthz", _health)
    app.router.add_get("/metrics", _metrics)
    return app


async def _health(request: web.Request) -> web.Response:
    """GET /healthz: 200 if all is well, else 503; the faults by part, and the report of the last run."""
    health = request.app[HEALTH]
    told = {"status": health.status, "faults": health.faults, "last_run": health.last_run}
    return web.json_response(told, status=503 if health.faults else 200, headers={"Cache-Control": "no-store"})


async def _metrics(request: web.Request) -> web.Response:
    """GET /metrics: the metrics in the text format of Prometheus."""
    headers = {"Content-Type": CONTENT_TYPE_LATEST, "Cache-Control": "no-store"}
    return web.Response(body=generate_latest(request.app[METRICS]), headers=headers)
