"""Joining and leaving groups, and the roles in them."""

from aiohttp import web

from conclave import app_keys
from conclave.actions import members
from conclave.actions.commits import Commit
from conclave.api.action_runner import answer_list, run_action
from conclave.auth import tokens
from conclave.wire.exchange import path_id, read_body, read_query, reply, reply_empty
from conclave.wire.schemas.base import Paging
from conclave.wire.schemas.commits import LeaveGroup
from conclave.wire.schemas.members import NamedUser, RemoveMember


async def join(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/join: Join a public group."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    await request.app[app_keys.SENDING].prepare(group_id, user_id, 0)
    group_info = await run_action(request, members.join, request.app[app_keys.CONTEXT], group_id, user_id)
    return reply(request, {"group_info": group_info})


async def leave(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/leave: Leave a group."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    body = await read_body(request, LeaveGroup)
    commit = Commit(body.commit_message, body.group_info)
    await run_action(request, members.leave, request.app[app_keys.CONTEXT], group_id, user_id, commit)
    return reply_empty(request)


async def remove(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/remove: Remove a member."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    body = await read_body(request, RemoveMember)
    commit = Commit(body.commit_message, body.group_info)
    await run_action(request, members.remove, request.app[app_keys.CONTEXT], group_id, user_id, body.user_id, commit)
    return reply_empty(request)


async def promote(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/promote: Make a member an admin."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    body = await read_body(request, NamedUser)
    await run_action(request, members.promote, request.app[app_keys.CONTEXT], group_id, user_id, body.user_id)
    return reply_empty(request)


async def demote(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/demote: Make an admin a member."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    body = await read_body(request, NamedUser)
    await run_action(request, members.demote, request.app[app_keys.CONTEXT], group_id, user_id, body.user_id)
    return reply_empty(request)


async def list_admins(request: web.Request) -> web.StreamResponse:
    """GET /groups/{group_id}/admins: The admins of a group."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    context, paging = request.app[app_keys.CONTEXT], read_query(request, Paging)
    return await answer_list(request, paging, members.list_admins, context, group_id, user_id)
