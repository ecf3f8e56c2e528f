"""The shortcut of the busiest requests past aiohttp's router.

Most requests send a message or ask for messages. aiohttp finds a handler by walking the path and trying the routes
below each prefix, and wraps it for each middleware. That takes longer than the handler. These two routes are found by
one look at the path instead. Everything else about them is as on the other way: ``RequestPipeline`` and the handlers
are the same. A request that is unusual in any way takes the other way.
"""

import re

from aiohttp import hdrs, web
from aiohttp.web_request import BaseRequest

from conclave import app_keys
from conclave.api import messages
from conclave.server.middleware import PIPELINE
from conclave.server.plain import MESSAGES

_MESSAGES = re.compile(MESSAGES, re.ASCII)


class Shortcut:
    """Handles the busiest requests itself, and has ``app`` handle all others."""

    def __init__(self, app: web.Application, server: web.Server) -> None:
        """``server``: that of the runner of ``app``, which has been set up."""
        self._long_way = server.request_handler
        self._app = app
        self._pipeline = app[PIPELINE]
        endpoints = app[app_keys.ENDPOINTS]
        self._ways = {
            "GET": (endpoints[messages.fetch], messages.fetch_of),
            "POST": (endpoints[messages.send], messages.send_to),
        }

    async def handle(self, request: BaseRequest) -> web.StreamResponse:
        """Handle a request."""
        way = self._ways.get(request.method)
        found = _MESSAGES.fullmatch(request.rel_url.raw_path) if way else None
        if not way or not found or hdrs.EXPECT in request.headers or not isinstance(request, web.Request):
            return await self._long_way(request)
        endpoint, handle = way
        return await self._pipeline.handle(
            request, endpoint.path, endpoint, lambda each: handle(each, self._app, found[1])
        )


def take_shortcut(app: web.Application, server: web.Server | None) -> None:
    """Have the busiest requests to ``server``, that of a runner of ``app`` after its setup, take the shortcut."""
    assert server  # noqa: S101 - a runner that was set up has one
    server.request_handler = Shortcut(app, server).handle
