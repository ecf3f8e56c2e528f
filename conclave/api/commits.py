"""Uploading commits and reading group info."""

import sqlite3

from aiohttp import web

from conclave import keys
from conclave.auth import tokens
from conclave.budget import cost
from conclave.errors import BadRequestError
from conclave.store import bodies, commits, members
from conclave.store.commits import Commit
from conclave.store.news import announce, members_of
from conclave.wire.exchange import path_id, read_body, reply, reply_empty
from conclave.wire.handover import SHARE


async def upload(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/commit: Store a commit, group info, the MLS id: what is given."""
    app = request.app
    group_id = path_id(request, "group_id")
    commit = Commit(**await read_body(request))
    await app[keys.STORE].write(_upload, group_id, request[tokens.CALLER].user_id, commit, app[keys.CLOCK].now())
    return reply_empty(request)


def _upload(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, commit: Commit, now: int) -> None:
    member = members.require_member(connection, group_id, user_id)
    commits.store(connection, member, commit, now)
    if commit.commit_message:
        others = members_of(connection, member.group.group_key) - {user_id}
        announce(connection, others, "group_update", group_id=group_id, update_type="commit")


async def external_join(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/external-join: Tell that the caller joined the MLS group, and store its commit."""
    app = request.app
    group_id = path_id(request, "group_id")
    commit = Commit(**await read_body(request))
    await app[keys.STORE].write(_external_join, group_id, request[tokens.CALLER].user_id, commit, app[keys.CLOCK].now())
    return reply_empty(request)


def _external_join(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, commit: Commit, now: int) -> None:
    """Who came by /join is new to all; anybody else was a member before, with keys that are void now."""
    member = members.require_member(connection, group_id, user_id)
    if member.group.group_info_body is None:
        raise BadRequestError("this group has no group info yet")
    commits.store(connection, member, commit, now)
    everybody = members_of(connection, member.group.group_key)
    if member.joining:
        members.has_joined(connection, member)
        announce(connection, everybody, "group_update", group_id=group_id, update_type="commit")
    else:
        announce(connection, everybody - {user_id}, "identity_reset", group_id=group_id, user_id=user_id)


async def group_info(request: web.Request) -> web.Response:
    """GET /groups/{group_id}/group-info: The stored group info."""
    await request[SHARE].reserve(cost(bodies.LONGEST_BYTES))
    stored = await request.app[keys.STORE].read(
        commits.group_info, path_id(request, "group_id"), request[tokens.CALLER].user_id
    )
    return reply(request, {"group_info": stored})
