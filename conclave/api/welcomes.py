"""Welcomes: fetched by new members, and gone once they have them."""

from aiohttp import web

from conclave import auth, keys
from conclave.store import welcomes
from conclave.wire.exchange import path_id, reply, reply_empty


async def list_own(request: web.Request) -> web.Response:
    """GET /welcomes: Welcomes that wait for the caller."""
    found = await request.app[keys.STORE].read(welcomes.of_user, request[auth.CALLER].user_id)
    return reply(request, {"welcomes": found})


async def accept(request: web.Request) -> web.Response:
    """POST /welcomes/{welcome_id}/accept: Delete a welcome that was received."""
    await request.app[keys.STORE].write(welcomes.accept, path_id(request, "welcome_id"), request[auth.CALLER].user_id)
    return reply_empty(request)
