"""Creating, listing, changing and deleting groups."""

from collections.abc import AsyncIterator
from functools import partial

from aiohttp import web

from conclave import app_keys
from conclave.actions import groups
from conclave.actions.groups import GroupChanges, LongGroup
from conclave.api.action_runner import answer_list, change_group, read_action_again, rehearse, run_action
from conclave.auth import tokens
from conclave.retention.hidden import NOTHING
from conclave.wire import results
from conclave.wire.exchange import FORMAT, MAX_NUMBER, path_id, read_body, read_query, reply, reply_empty
from conclave.wire.formats import Format
from conclave.wire.lists import ListWriter, LongList, next_span
from conclave.wire.schemas.base import Paging
from conclave.wire.schemas.groups import CreateGroup, FindPublicGroups, UpdateGroup

MEMBER_BYTES = 31
"""In protobuf a member takes at most 31 bytes besides its texts: the id has 16, field numbers and lengths the rest."""

GROWTH_BYTES, GROWTH_DIVISOR = 8 * 1024, 64
"""The texts of a group's members may grow by 8 KiB, and by a 64th, while they are written."""


async def create(request: web.Request) -> web.Response:
    """POST /groups: Create a group. The caller becomes its only member and admin."""
    context, user_id = request.app[app_keys.CONTEXT], request[tokens.CALLER].user_id
    body = await read_body(request, CreateGroup)
    group_id = await run_action(request, groups.create, context, user_id, body.group_name, body.alias)
    return reply(request, {"group_id": group_id})


async def list_own(request: web.Request) -> web.StreamResponse:
    """GET /groups: The caller's groups, with their members."""
    paging, user_id, write_long = read_query(request, Paging), request[tokens.CALLER].user_id, partial(_write, request)
    return await answer_list(request, paging, groups.list_own, user_id, is_complete=True, write_long=write_long)


async def _write(request: web.Request, writer: ListWriter, long: LongGroup) -> AsyncIterator[bytes]:
    """Write a group with many members."""
    last, size = await _measure(request, long) if request[FORMAT] is Format.PROTOBUF else (MAX_NUMBER, 0)
    item = LongList(writer, results.GroupDetails, {**vars(long.group), "members": []}, "members", size)
    prefix, part = item.begin(), await read_action_again(request, groups.list_members, long, last, next_span(None))
    while True:
        yield prefix + item.items(part.items)
        prefix = b""
        if part.is_end:
            break
        part = await read_action_again(request, groups.list_members, long, last, next_span(part))
    yield item.end()


async def _measure(request: web.Request, long: LongGroup) -> tuple[int, int]:
    """Return the key of a group's last member, and an upper bound of the bytes of all members in protobuf."""
    last = size = 0
    while True:
        totals = await read_action_again(request, groups.measure_members, long, last)
        if totals.last is None:
            return last, size + GROWTH_BYTES + size // GROWTH_DIVISOR
        last, size = totals.last, size + totals.text_bytes + totals.count * MEMBER_BYTES


async def list_public(request: web.Request) -> web.StreamResponse:
    """GET /groups/public: Public groups whose name contains a text."""
    paging = read_query(request, FindPublicGroups)
    return await answer_list(request, paging, groups.list_public, paging.pattern)


async def update(request: web.Request) -> web.Response:
    """PATCH /groups/{group_id}: Change a group, all or nothing.

    The response says how many messages the change makes expire at once. With `dry_run` nothing changes.
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
    needs_rehearsal = body.dry_run or changes.concern_retention
    totals = await rehearse(request, group_id, changes) if needs_rehearsal else NOTHING
    if not body.dry_run:
        await change_group(request, group_id, changes)
    return reply(request, {"messages_expiring": totals.messages, "oldest_expiring": totals.oldest})


async def delete(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/delete: Delete a group for all of its members."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    await run_action(request, groups.delete, request.app[app_keys.CONTEXT], group_id, user_id)
    return reply_empty(request)
