"""Creating, listing, changing and deleting groups."""

import sqlite3
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from conclave import keys
from conclave.api.lists import answer_list
from conclave.auth import tokens
from conclave.clock import Clock
from conclave.retention.policy import PolicySettings
from conclave.store import groups, members
from conclave.store.news import announce, members_of
from conclave.wire.exchange import path_id, read_body, read_query, reply, reply_empty
from conclave.wire.handover import SHARE


async def create(request: web.Request) -> web.Response:
    """POST /groups: Create a group; the caller is its sole member and admin."""
    app = request.app
    body = await read_body(request)
    group_id = await app[keys.STORE].write(
        groups.add, request[tokens.CALLER].user_id, body["group_name"], body["alias"], app[keys.CLOCK].now()
    )
    return reply(request, {"group_id": group_id})


async def list_own(request: web.Request) -> web.StreamResponse:
    """GET /groups: The caller's groups, with their members."""
    return await answer_list(request, members.groups_of, request[tokens.CALLER].user_id, request[SHARE])


async def list_public(request: web.Request) -> web.StreamResponse:
    """GET /groups/public: Public groups whose name contains a text."""
    return await answer_list(request, groups.list_public, read_query(request)["pattern"], request[SHARE])


async def update(request: web.Request) -> web.Response:
    """PATCH /groups/{group_id}: Change a group, all or nothing."""
    app = request.app
    group_id = path_id(request, "group_id")
    body = await read_body(request)
    await app[keys.CLOCK_WATCH].write(
        _update, group_id, request[tokens.CALLER].user_id, body, app[keys.CONFIG].policy, app[keys.CLOCK]
    )
    return reply_empty(request)


def _update(
    connection: sqlite3.Connection,
    group_id: bytes,
    user_id: bytes,
    body: Mapping[str, Any],
    policy: PolicySettings,
    clock: Clock,
) -> None:
    group = members.require_admin(connection, group_id, user_id).group
    changes = {name: value for name, value in body.items() if name != "update_message_expiry"}
    if not body["update_message_expiry"]:
        changes.pop("message_expiry_seconds", None)
    groups.change(connection, group, changes, policy, clock)
    everybody = members_of(connection, group.group_key)
    announce(connection, everybody, "group_update", group_id=group_id, update_type="group_settings")


async def delete(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/delete: Delete a group for all of its members."""
    app = request.app
    await app[keys.STORE].write(
        _delete, path_id(request, "group_id"), request[tokens.CALLER].user_id, app[keys.CLOCK].now()
    )
    return reply_empty(request)


def _delete(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, now: int) -> None:
    group = members.require_admin(connection, group_id, user_id).group
    everybody = members_of(connection, group.group_key)
    groups.remove(connection, group, now)
    announce(connection, everybody, "group_deleted", group_id=group_id)
