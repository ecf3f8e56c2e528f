"""Whether the server is well; who may know more asks elsewhere."""

from aiohttp import web

from conclave import keys


async def health(request: web.Request) -> web.Response:
    """GET /healthz"""
    return web.json_response({"status": "degraded" if request.app[keys.HEALTH].faults else "ok"})
