"""Looking up accounts."""

from aiohttp import web

from conclave import keys
from conclave.auth import tokens
from conclave.store import users
from conclave.wire.exchange import path_id, path_name, reply


async def me(request: web.Request) -> web.Response:
    """GET /me: The caller's own account."""
    user = await request.app[keys.STORE].read(users.own, request[tokens.CALLER].user_id)
    return reply(request, user)


async def by_name(request: web.Request) -> web.Response:
    """GET /users/{username}: An account by its name."""
    user = await request.app[keys.STORE].read(users.by_name, path_name(request, "username"))
    return reply(request, user)


async def by_id(request: web.Request) -> web.Response:
    """GET /users/by-id/{user_id}: An account by its id."""
    user = await request.app[keys.STORE].read(users.by_id, path_id(request, "user_id"))
    return reply(request, user)
