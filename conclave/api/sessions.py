"""Listing and ending the caller's sessions."""

from typing import TYPE_CHECKING, Any

from aiohttp import web

from conclave import app_keys
from conclave.actions import sessions
from conclave.api.action_runner import answer_list, run_action
from conclave.auth import tokens
from conclave.wire.exchange import path_id, read_query, reply_empty
from conclave.wire.schemas.base import Paging

if TYPE_CHECKING:
    from conclave.store.resources.sessions import SessionRow


async def list_own(request: web.Request) -> web.StreamResponse:
    """GET /sessions: The caller's sessions."""
    app, caller = request.app, request[tokens.CALLER]
    activity, now = app[app_keys.ACTIVITY], app[app_keys.CLOCK].now()

    def row(session: "SessionRow") -> dict[str, Any] | None:
        expires_at = activity.expires_at(session)
        if expires_at <= now:
            return None
        return {
            "id": session.public_id,
            "created_at": session.created_at,
            "last_used_at": activity.last_used(session),
            "expires_at": expires_at,
            "current": session.session_id == caller.session_id,
        }

    return await answer_list(request, read_query(request, Paging), sessions.list_own, caller.user_id, row)


async def revoke(request: web.Request) -> web.Response:
    """DELETE /sessions/{id}: End one of the caller's sessions."""
    await run_action(request, sessions.revoke, request[tokens.CALLER].user_id, path_id(request, "id"))
    return reply_empty(request)
