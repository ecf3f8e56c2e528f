"""What becomes of a group's messages."""

from aiohttp import web

from conclave import keys
from conclave.auth import tokens
from conclave.store import members
from conclave.wire.exchange import path_id, reply


async def policy(request: web.Request) -> web.Response:
    """GET /groups/{group_id}/retention: How long messages of a group live."""
    app = request.app
    member = await app[keys.STORE].read(
        members.require_member, path_id(request, "group_id"), request[tokens.CALLER].user_id
    )
    layers = {
        "server_retention_seconds": app[keys.CONFIG].message_retention,
        "group_expiry_seconds": member.group.message_expiry_seconds,
    }
    return reply(request, layers)
