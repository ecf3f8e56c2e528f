"""Looking up accounts."""

from aiohttp import web

from conclave.actions import users
from conclave.api.action_runner import read_action
from conclave.auth import tokens
from conclave.wire.exchange import path_id, path_name, reply


async def me(request: web.Request) -> web.Response:
    """GET /me: The caller's own account."""
    return reply(request, await read_action(request, users.me, request[tokens.CALLER].user_id))


async def by_name(request: web.Request) -> web.Response:
    """GET /users/{username}: An account by its name."""
    return reply(request, await read_action(request, users.by_name, path_name(request, "username")))


async def by_id(request: web.Request) -> web.Response:
    """GET /users/by-id/{user_id}: An account by its id."""
    return reply(request, await read_action(request, users.by_id, path_id(request, "user_id")))
