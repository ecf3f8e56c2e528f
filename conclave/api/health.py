"""Whether the server is well. Operators learn more from their own listener."""

from aiohttp import web

from conclave import keys
from conclave.wire.exchange import reply


async def health(request: web.Request) -> web.Response:
    """GET /healthz: Whether the server is well."""
    return reply(request, {"status": "degraded" if request.app[keys.HEALTH].faults else "ok"})
