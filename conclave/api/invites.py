"""Creating, listing, cancelling, accepting and declining invites."""

from aiohttp import web

from conclave import app_keys
from conclave.actions import invites
from conclave.api.action_runner import answer_list, run_action
from conclave.auth import tokens
from conclave.wire.exchange import path_id, read_body, read_query, reply_empty
from conclave.wire.schemas.base import Paging
from conclave.wire.schemas.invites import CancelInvite, EscrowInvite


async def escrow(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/escrow-invite: Invite a user, and store the commit and the welcome."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    body = await read_body(request, EscrowInvite)
    payloads = [body.commit_message, body.welcome_message, body.group_info]
    await request.app[app_keys.SENDING].prepare(group_id, user_id, sum(map(len, payloads)))
    await run_action(
        request, invites.escrow, request.app[app_keys.CONTEXT], group_id, user_id, body.invitee_id, payloads
    )
    return reply_empty(request)


async def list_of_group(request: web.Request) -> web.StreamResponse:
    """GET /groups/{group_id}/invites: Pending invites of a group."""
    context, user_id = request.app[app_keys.CONTEXT], request[tokens.CALLER].user_id
    group_id = path_id(request, "group_id")
    paging = read_query(request, Paging)
    return await answer_list(request, paging, invites.list_of_group, context, group_id, user_id, is_complete=True)


async def cancel(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/cancel-invite: Cancel an invite."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    body = await read_body(request, CancelInvite)
    await run_action(request, invites.cancel, request.app[app_keys.CONTEXT], group_id, user_id, body.invitee_id)
    return reply_empty(request)


async def list_own(request: web.Request) -> web.StreamResponse:
    """GET /invites: Pending invites of the caller."""
    context, user_id = request.app[app_keys.CONTEXT], request[tokens.CALLER].user_id
    paging = read_query(request, Paging)
    return await answer_list(request, paging, invites.list_own, context, user_id, is_complete=True)


async def accept(request: web.Request) -> web.Response:
    """POST /invites/{invite_id}/accept: Accept an invite and become a member."""
    invite_id, user_id = path_id(request, "invite_id"), request[tokens.CALLER].user_id
    await run_action(request, invites.accept, request.app[app_keys.CONTEXT], invite_id, user_id)
    return reply_empty(request)


async def decline(request: web.Request) -> web.Response:
    """POST /invites/{invite_id}/decline: Decline an invite."""
    invite_id, user_id = path_id(request, "invite_id"), request[tokens.CALLER].user_id
    await run_action(request, invites.decline, request.app[app_keys.CONTEXT], invite_id, user_id)
    return reply_empty(request)
