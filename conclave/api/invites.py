"""Invites: made, seen, withdrawn, accepted, declined."""

import sqlite3
from collections.abc import Mapping

from aiohttp import web

from conclave import keys
from conclave.api.lists import answer_list
from conclave.auth import tokens
from conclave.clock import Reading
from conclave.errors import NotFoundError
from conclave.store import invites, members
from conclave.wire.exchange import path_id, read_body, reply_empty
from conclave.wire.handover import SHARE


async def escrow(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/escrow-invite: Invite a user, leaving what the invitee will need."""
    group_id = path_id(request, "group_id")
    body = await read_body(request)
    clock = request.app[keys.CLOCK]
    await request.app[keys.CLOCK_WATCH].write(
        _escrow, group_id, request[tokens.CALLER].user_id, body, clock.now(), _dead_before(request), clock.read()
    )
    return reply_empty(request)


def _escrow(
    connection: sqlite3.Connection,
    group_id: bytes,
    inviter_id: bytes,
    body: Mapping[str, bytes],
    now: int,
    dead_before: int,
    clock: Reading,
) -> None:
    group = members.require_admin(connection, group_id, inviter_id).group
    members.require_invitable(connection, group, [body["invitee_id"]])
    carried = [body["commit_message"], body["welcome_message"], body["group_info"]]
    invites.add(connection, group, inviter_id, body["invitee_id"], carried, now, dead_before, clock)


async def list_of_group(request: web.Request) -> web.StreamResponse:
    """GET /groups/{group_id}/invites: Pending invites of a group."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    return await answer_list(request, invites.of_group, group_id, user_id, _dead_before(request), request[SHARE])


async def cancel(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/cancel-invite: Cancel an invite."""
    group_id = path_id(request, "group_id")
    body = await read_body(request)
    await request.app[keys.STORE].write(
        _cancel, group_id, request[tokens.CALLER].user_id, body["invitee_id"], _dead_before(request)
    )
    return reply_empty(request)


def _cancel(
    connection: sqlite3.Connection, group_id: bytes, user_id: bytes, invitee_id: bytes, dead_before: int
) -> None:
    group_key = members.require_admin(connection, group_id, user_id).group.group_key
    if not invites.cancel_pending(connection, group_key, invitee_id, dead_before):
        raise NotFoundError("no invite of this user is pending")


async def list_own(request: web.Request) -> web.StreamResponse:
    """GET /invites: Pending invites of the caller."""
    user_id = request[tokens.CALLER].user_id
    return await answer_list(request, invites.of_user, user_id, _dead_before(request), request[SHARE])


async def accept(request: web.Request) -> web.Response:
    """POST /invites/{invite_id}/accept: Accept an invite and become a member."""
    await request.app[keys.STORE].write(
        _accept,
        path_id(request, "invite_id"),
        request[tokens.CALLER].user_id,
        request.app[keys.CLOCK].now(),
        _dead_before(request),
    )
    return reply_empty(request)


def _accept(connection: sqlite3.Connection, invite_id: bytes, user_id: bytes, now: int, dead_before: int) -> None:
    invites.accept(connection, invites.require_own(connection, invite_id, user_id, dead_before), now)


async def decline(request: web.Request) -> web.Response:
    """POST /invites/{invite_id}/decline: Decline an invite."""
    await request.app[keys.STORE].write(
        _decline, path_id(request, "invite_id"), request[tokens.CALLER].user_id, _dead_before(request)
    )
    return reply_empty(request)


def _decline(connection: sqlite3.Connection, invite_id: bytes, user_id: bytes, dead_before: int) -> None:
    invites.decline(connection, invites.require_own(connection, invite_id, user_id, dead_before))


def _dead_before(request: web.Request) -> int:
    """Return the bound (exclusive) on ``created_at`` of invites that are dead now."""
    return request.app[keys.CONFIG].policy.invites_dead_before(request.app[keys.CLOCK].now())
