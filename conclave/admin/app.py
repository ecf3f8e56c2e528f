"""The operators' listener: what is wrong, and what cleanup did; on loopback unless configured otherwise."""

from aiohttp import web

from conclave.health.parts import Health

HEALTH = web.AppKey("health", Health)


def create_admin_app(health: Health) -> web.Application:
    """Build the operators' application."""
    app = web.Application()
    app[HEALTH] = health
    app.router.add_get("/healthz", _health)
    return app


async def _health(request: web.Request) -> web.Response:
    """GET /healthz: 200 if all is well, else 503; the faults by part, and the report of the last run."""
    health = request.app[HEALTH]
    told = {"status": health.status, "faults": health.faults, "last_run": health.last_run}
    return web.json_response(told, status=503 if health.faults else 200, headers={"Cache-Control": "no-store"})
