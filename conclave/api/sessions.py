"""The caller's sessions: seen and ended."""

from aiohttp import web

from conclave import auth, keys
from conclave.store import sessions
from conclave.wire.exchange import path_id, reply, reply_empty


async def list_own(request: web.Request) -> web.Response:
    """GET /sessions: The caller's sessions."""
    app, caller = request.app, request[auth.CALLER]
    activity, now = app[keys.ACTIVITY], app[keys.CLOCK].now()
    listed = [
        {
            "id": each.public_id,
            "created_at": each.created_at,
            "last_used_at": activity.last_used(each),
            "expires_at": activity.expires_at(each),
            "current": each.session_id == caller.session_id,
        }
        for each in await app[keys.STORE].read(sessions.of_user, caller.user_id)
        if activity.expires_at(each) > now
    ]
    return reply(request, {"sessions": listed})


async def revoke(request: web.Request) -> web.Response:
    """DELETE /sessions/{session_id}: End one of the caller's sessions."""
    await request.app[keys.STORE].write(sessions.revoke, request[auth.CALLER].user_id, path_id(request, "session_id"))
    return reply_empty(request)
