"""Joining and leaving groups, and the roles in them."""

import sqlite3

from aiohttp import web

from conclave import keys
from conclave.api.lists import answer_list
from conclave.auth import tokens
from conclave.budget import cost
from conclave.clock import Reading
from conclave.store import bodies, commits, invites, members, users
from conclave.store.commits import Commit
from conclave.wire.exchange import path_id, read_body, reply, reply_empty
from conclave.wire.handover import SHARE


async def join(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/join: Join a public group."""
    app = request.app
    now = app[keys.CLOCK].now()
    await request[SHARE].reserve(cost(bodies.LONGEST_BYTES))
    group_info = await app[keys.CLOCK_WATCH].write(
        _join,
        path_id(request, "group_id"),
        request[tokens.CALLER].user_id,
        now,
        app[keys.CONFIG].policy.invites_dead_before(now),
        app[keys.CLOCK].read(),
    )
    return reply(request, {"group_info": group_info})


def _join(
    connection: sqlite3.Connection, group_id: bytes, user_id: bytes, now: int, dead_before: int, clock: Reading
) -> bytes:
    group_key, group_info = members.require_joinable(connection, group_id, user_id)
    invites.make_way(connection, group_key, user_id, dead_before, clock)
    members.add(connection, group_key, user_id, now, joining=True)
    return bodies.get(connection, group_info)


async def leave(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/leave: Leave a group."""
    app = request.app
    group_id = path_id(request, "group_id")
    commit = Commit(**await read_body(request))
    await app[keys.STORE].write(_leave, group_id, request[tokens.CALLER].user_id, commit, app[keys.CLOCK].now())
    return reply_empty(request)


def _leave(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, commit: Commit, now: int) -> None:
    member = members.require_member(connection, group_id, user_id)
    with bodies.spare_room(connection):
        commits.store(connection, member, commit, now)
    members.remove(connection, member, now)


async def remove(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/remove: Remove a member."""
    app = request.app
    group_id = path_id(request, "group_id")
    body = await read_body(request)
    target_id, commit = body.pop("user_id"), Commit(**body)
    await app[keys.STORE].write(
        _remove, group_id, request[tokens.CALLER].user_id, target_id, commit, app[keys.CLOCK].now()
    )
    return reply_empty(request)


def _remove(
    connection: sqlite3.Connection, group_id: bytes, user_id: bytes, target_id: bytes, commit: Commit, now: int
) -> None:
    admin = members.require_admin(connection, group_id, user_id)
    target = members.require_target(connection, group_id, target_id)
    with bodies.spare_room(connection):
        commits.store(connection, admin, commit, now)
    members.remove(connection, target, now, told=True)


async def promote(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/promote: Make a member an admin."""
    group_id = path_id(request, "group_id")
    body = await read_body(request)
    await request.app[keys.STORE].write(_promote, group_id, request[tokens.CALLER].user_id, body["user_id"])
    return reply_empty(request)


def _promote(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, target_id: bytes) -> None:
    members.require_admin(connection, group_id, user_id)
    members.promote(connection, members.require_target(connection, group_id, target_id))


async def demote(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/demote: Make an admin a member."""
    group_id = path_id(request, "group_id")
    body = await read_body(request)
    await request.app[keys.STORE].write(_demote, group_id, request[tokens.CALLER].user_id, body["user_id"])
    return reply_empty(request)


def _demote(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, target_id: bytes) -> None:
    members.require_admin(connection, group_id, user_id)
    users.by_id(connection, target_id)
    members.demote(connection, members.membership(connection, group_id, target_id))


async def list_admins(request: web.Request) -> web.StreamResponse:
    """GET /groups/{group_id}/admins: The admins of a group."""
    group_id = path_id(request, "group_id")
    return await answer_list(request, members.admins_of, group_id, request[tokens.CALLER].user_id, request[SHARE])
