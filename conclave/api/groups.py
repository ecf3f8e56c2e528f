"""Creating, listing, changing and deleting groups."""

from aiohttp import web

from conclave import app_keys
from conclave.actions import groups
from conclave.actions.groups import GroupChanges
from conclave.api.action_runner import act, answer_list, change_group, rehearse
from conclave.auth import tokens
from conclave.retention.hidden import NOTHING
from conclave.wire.exchange import path_id, read_body, read_query, reply, reply_empty
from conclave.wire.handover import SHARE
from conclave.wire.schemas.groups import CreateGroup, FindPublicGroups, UpdateGroup


async def create(request: web.Request) -> web.Response:
    """POST /groups: Create a group; the caller is its sole member and admin."""
    context, user_id = request.app[app_keys.CONTEXT], request[tokens.CALLER].user_id
    body = await read_body(request, CreateGroup)
    group_id = await act(request, groups.create, context, user_id, body.group_name, body.alias)
    return reply(request, {"group_id": group_id})


async def list_own(request: web.Request) -> web.StreamResponse:
    """GET /groups: The caller's groups, with their members."""
    return await answer_list(request, groups.list_own, request[tokens.CALLER].user_id, request[SHARE])


async def list_public(request: web.Request) -> web.StreamResponse:
    """GET /groups/public: Public groups whose name contains a text."""
    query = read_query(request, FindPublicGroups)
    return await answer_list(request, groups.list_public, query.pattern, request[SHARE])


async def update(request: web.Request) -> web.Response:
    """PATCH /groups/{group_id}: Change a group, all or nothing.

    The answer says what expires at once by the change. With `dry_run` it says what would, and nothing changes.
    """
    group_id = path_id(request, "group_id")
    body = await read_body(request, UpdateGroup)
    changes = GroupChanges(
        alias=body.alias,
        group_name=body.group_name,
        visibility=body.visibility,
        message_expiry_seconds=body.message_expiry_seconds if body.update_message_expiry else None,
        min_lifetime_seconds=body.min_lifetime_seconds if body.update_min_lifetime else None,
    )
    is_counted = body.dry_run or changes.concern_retention
    expiring = await rehearse(request, group_id, changes) if is_counted else NOTHING
    if not body.dry_run:
        await change_group(request, group_id, changes)
    return reply(request, {"messages_expiring": expiring.messages, "oldest_expiring": expiring.oldest})


async def delete(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/delete: Delete a group for all of its members."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    await act(request, groups.delete, request.app[app_keys.CONTEXT], group_id, user_id)
    return reply_empty(request)
