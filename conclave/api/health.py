"""Whether the server is well. Operators learn more from their own listener."""

from aiohttp import web

from conclave import app_keys
from conclave.errors import UnavailableError
from conclave.health.readiness import Readiness, readiness_of
from conclave.wire.exchange import reply

RETRY_SECONDS = 5
"""A client that finds the server not ready may ask again after 5 seconds."""


async def health(request: web.Request) -> web.Response:
    """GET /healthz: Whether the server is well."""
    return reply(request, {"status": "degraded" if request.app[app_keys.HEALTH].faults else "ok"})


async def ready(request: web.Request) -> web.Response:
    """GET /readyz: Whether the server serves."""
    status = readiness_of(request.app[app_keys.HEALTH], request.app[app_keys.STORAGE])
    if status is not Readiness.READY:
        raise UnavailableError(f"the server is not ready: {status}", seconds=RETRY_SECONDS)
    return reply(request, {"status": status})
