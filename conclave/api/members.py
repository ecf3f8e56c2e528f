"""Joining and leaving groups."""

import sqlite3

from aiohttp import web

from conclave import auth, keys
from conclave.store import bodies, commits, members
from conclave.store.commits import Commit
from conclave.wire.exchange import path_id, read_body, reply, reply_empty


async def join(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/join: Join a public group."""
    app = request.app
    group_info = await app[keys.STORE].write(
        _join,
        path_id(request, "group_id"),
        request[auth.CALLER].user_id,
        app[keys.CLOCK].now(),
        app[keys.CONFIG].invite_ttl_seconds,
    )
    return reply(request, {"group_info": group_info})


def _join(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, now: int, invite_ttl: int) -> bytes:
    return bodies.get(connection, members.join_public(connection, group_id, user_id, now, invite_ttl))


async def leave(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/leave: Leave a group."""
    app = request.app
    group_id = path_id(request, "group_id")
    commit = Commit(**await read_body(request))
    await app[keys.STORE].write(_leave, group_id, request[auth.CALLER].user_id, commit, app[keys.CLOCK].now())
    return reply_empty(request)


def _leave(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, commit: Commit, now: int) -> None:
    member = members.require_member(connection, group_id, user_id)
    commits.store(connection, member, commit, now)
    members.remove(connection, member, now)
