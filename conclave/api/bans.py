"""Bans of users from a group."""

from aiohttp import web

from conclave import app_keys
from conclave.actions import bans
from conclave.actions.commits import Commit
from conclave.api.action_runner import answer_list, run_action
from conclave.auth import tokens
from conclave.wire.exchange import path_id, read_body, read_query, reply_empty
from conclave.wire.schemas.base import Paging
from conclave.wire.schemas.members import NamedUser, RemoveMember


async def ban(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/ban: Ban a user from a group. A member is removed."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    body = await read_body(request, RemoveMember)
    commit = Commit(body.commit_message, body.group_info)
    await run_action(request, bans.ban, request.app[app_keys.CONTEXT], group_id, user_id, body.user_id, commit)
    return reply_empty(request)


async def unban(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/unban: Lift a ban."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    body = await read_body(request, NamedUser)
    await run_action(request, bans.unban, request.app[app_keys.CONTEXT], group_id, user_id, body.user_id)
    return reply_empty(request)


async def list_banned(request: web.Request) -> web.StreamResponse:
    """GET /groups/{group_id}/banned: The users who are banned from a group."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    context, paging = request.app[app_keys.CONTEXT], read_query(request, Paging)
    return await answer_list(request, paging, bans.list_banned, context, group_id, user_id)
