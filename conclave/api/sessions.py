"""The caller's sessions: listing and ending them."""

from aiohttp import web

from conclave import app_keys
from conclave.actions import sessions
from conclave.api.action_runner import act, read_list
from conclave.auth import tokens
from conclave.wire.exchange import path_id, reply_empty
from conclave.wire.handover import SHARE
from conclave.wire.pieces import reply_list


async def list_own(request: web.Request) -> web.StreamResponse:
    """GET /sessions: The caller's sessions."""
    app, caller = request.app, request[tokens.CALLER]
    activity, now = app[app_keys.ACTIVITY], app[app_keys.CLOCK].now()
    listed = [
        {
            "id": each.public_id,
            "created_at": each.created_at,
            "last_used_at": activity.last_used(each),
            "expires_at": activity.expires_at(each),
            "current": each.session_id == caller.session_id,
        }
        for each in await read_list(request, sessions.list_own, caller.user_id, request[SHARE])
        if activity.expires_at(each) > now
    ]
    return await reply_list(request, listed)


async def revoke(request: web.Request) -> web.Response:
    """DELETE /sessions/{id}: End one of the caller's sessions."""
    await act(request, sessions.revoke, request[tokens.CALLER].user_id, path_id(request, "id"))
    return reply_empty(request)
