"""The retention policy of a group, and the operator's configuration."""

from aiohttp import web

from conclave import app_keys
from conclave.actions import retention
from conclave.api.action_runner import read_action
from conclave.auth import tokens
from conclave.wire.exchange import path_id, read_query, reply
from conclave.wire.schemas.retention import GetRetention


async def policy(request: web.Request) -> web.Response:
    """GET /groups/{group_id}/retention: The retention policy of a group."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    context, after = request.app[app_keys.CONTEXT], read_query(request, GetRetention).taken_back_after
    return reply(request, await read_action(request, retention.policy, context, group_id, user_id, after))


async def configuration(request: web.Request) -> web.Response:
    """GET /retention/configuration: The operator's settings in milliseconds, in the format of MSC1763."""
    context, user_id = request.app[app_keys.CONTEXT], request[tokens.CALLER].user_id
    return reply(request, await read_action(request, retention.configuration, context, user_id))
