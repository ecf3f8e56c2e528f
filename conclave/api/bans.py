"""Keeping users out of a group."""

import sqlite3

from aiohttp import web

from conclave import keys
from conclave.api.lists import answer_list
from conclave.auth import tokens
from conclave.budget import Share
from conclave.store import bans, bodies, commits, invites, members, users
from conclave.store.commits import Commit
from conclave.wire.exchange import path_id, read_body, reply_empty
from conclave.wire.handover import SHARE


async def ban(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/ban: Ban a user, who is removed if a member."""
    app = request.app
    group_id = path_id(request, "group_id")
    body = await read_body(request)
    target_id, commit = body.pop("user_id"), Commit(**body)
    now = app[keys.CLOCK].now()
    dead_before = app[keys.CONFIG].policy.invites_dead_before(now)
    await app[keys.STORE].write(_ban, group_id, request[tokens.CALLER].user_id, target_id, commit, now, dead_before)
    return reply_empty(request)


def _ban(
    connection: sqlite3.Connection,
    group_id: bytes,
    user_id: bytes,
    target_id: bytes,
    commit: Commit,
    now: int,
    dead_before: int,
) -> None:
    admin = members.require_admin(connection, group_id, user_id)
    users.by_id(connection, target_id)
    group_key = admin.group.group_key
    invites.cancel_pending(connection, group_key, target_id, dead_before)
    bans.add(connection, group_key, target_id, user_id, now)
    target = members.membership(connection, group_id, target_id)
    if target:
        with bodies.spare_room(connection):
            commits.store(connection, admin, commit, now)
        members.remove(connection, target, now, told=True)  # the ban goes with the group if this was its last member


async def unban(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/unban: Lift a ban."""
    group_id = path_id(request, "group_id")
    body = await read_body(request)
    await request.app[keys.STORE].write(_unban, group_id, request[tokens.CALLER].user_id, body["user_id"])
    return reply_empty(request)


def _unban(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, target_id: bytes) -> None:
    group_key = members.require_admin(connection, group_id, user_id).group.group_key
    users.by_id(connection, target_id)
    bans.remove(connection, group_key, target_id)


async def list_banned(request: web.Request) -> web.StreamResponse:
    """GET /groups/{group_id}/banned: Who is banned from a group."""
    group_id = path_id(request, "group_id")
    return await answer_list(request, _banned, group_id, request[tokens.CALLER].user_id, request[SHARE])


def _banned(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, share: Share) -> list[bans.BannedUser]:
    return bans.of_group(connection, members.require_admin(connection, group_id, user_id).group.group_key, share)
