"""Health and readiness. The operators' listener reports details."""

from aiohttp import web

from conclave import app_keys
from conclave.errors import UnavailableError
from conclave.health.readiness import Readiness, readiness_of
from conclave.wire.exchange import reply

RETRY_SECONDS = 5
"""Clients may retry 5 seconds after the server was not ready."""


async def health(request: web.Request) -> web.Response:
    """GET /healthz: Whether all parts of the server work."""
    return reply(request, {"status": "degraded" if request.app[app_keys.HEALTH].faults else "ok"})


async def ready(request: web.Request) -> web.Response:
    """GET /readyz: Whether the server accepts requests."""
    status = readiness_of(request.app[app_keys.HEALTH], request.app[app_keys.STORAGE])
    if status is not Readiness.READY:
        raise UnavailableError(f"the server is not ready: {status}", seconds=RETRY_SECONDS)
    return reply(request, {"status": status})
