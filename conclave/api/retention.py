"""How long the messages of a group live, and what the operator has set about it."""

from aiohttp import web

from conclave import app_keys
from conclave.actions import retention
from conclave.api.action_runner import read_action
from conclave.auth import tokens
from conclave.wire.exchange import path_id, read_query, reply
from conclave.wire.schemas.retention import GetRetention


async def policy(request: web.Request) -> web.Response:
    """GET /groups/{group_id}/retention: How long messages of a group live."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    context, after = request.app[app_keys.CONTEXT], read_query(request, GetRetention).taken_back_after
    return reply(request, await read_action(request, retention.policy, context, group_id, user_id, after))


async def configuration(request: web.Request) -> web.Response:
    """GET /retention/configuration: What the operator has set, in milliseconds, as MSC1763 has it."""
    context, user_id = request.app[app_keys.CONTEXT], request[tokens.CALLER].user_id
    return reply(request, await read_action(request, retention.configuration, context, user_id))
