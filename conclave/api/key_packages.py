"""Key packages: uploaded by their users, handed out once each."""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiohttp import web

from conclave import keys
from conclave.auth import tokens
from conclave.budget import cost
from conclave.errors import TooManyRequestsError
from conclave.limits import SlidingWindow
from conclave.store import key_packages, members, users
from conclave.wire.exchange import path_id, read_body, reply, reply_empty
from conclave.wire.fields import KEY_PACKAGE_BYTES
from conclave.wire.handover import SHARE
from conclave.wire.pieces import reply_list


async def upload(request: web.Request) -> web.Response:
    """POST /key-packages: Upload key packages, all or nothing."""
    body = await read_body(request)
    await request.app[keys.STORE].write(_upload, request[tokens.CALLER].user_id, body)
    return reply_empty(request)


def _upload(connection: sqlite3.Connection, user_id: bytes, body: Mapping[str, Any]) -> None:
    users.require(connection, user_id)
    single, entries = body.get("key_package_data"), body["entries"]
    regular = [each["data"] for each in entries if not each["is_last_resort"]]
    if single and single not in regular:  # in both forms it is one package, and must not be handed out twice
        regular.insert(0, single)
    last_resorts = [each["data"] for each in entries if each["is_last_resort"]]
    # Those that would fall out by the others of the same request are not stored at all.
    for package in regular[-key_packages.REGULAR_KEPT :]:
        key_packages.add(connection, user_id, package, is_last_resort=False)
    for package in last_resorts[-1:]:
        key_packages.add(connection, user_id, package, is_last_resort=True)
    if body["signing_key_fingerprint"]:
        users.set_fingerprint(connection, user_id, body["signing_key_fingerprint"])


async def fetch(request: web.Request) -> web.Response:
    """GET /key-packages/{user_id}: Take a key package of a user; a regular one is handed out once."""
    app = request.app
    user_id = path_id(request, "user_id")
    package = await app[keys.STORE].write(_fetch, user_id, app[keys.HANDOUTS], app[keys.CLOCK].read().since_boot)
    return reply(request, package)


def _fetch(connection: sqlite3.Connection, user_id: bytes, handouts: SlidingWindow, now: int) -> dict[str, bytes]:
    users.by_id(connection, user_id)
    return _hand_out(connection, [user_id], handouts, now)[0]


async def invite(request: web.Request) -> web.StreamResponse:
    """POST /groups/{group_id}/invite: Take a key package of each user who is to be invited."""
    app = request.app
    group_id = path_id(request, "group_id")
    body = await read_body(request)
    invited = len(body["user_ids"])
    await request[SHARE].reserve(cost(invited * KEY_PACKAGE_BYTES[1], invited))
    packages = await app[keys.STORE].write(
        _invite,
        group_id,
        request[tokens.CALLER].user_id,
        body["user_ids"],
        app[keys.HANDOUTS],
        app[keys.CLOCK].read().since_boot,
    )
    return await reply_list(request, packages)


def _invite(
    connection: sqlite3.Connection,
    group_id: bytes,
    inviter_id: bytes,
    user_ids: Iterable[bytes],
    handouts: SlidingWindow,
    now: int,
) -> list[dict[str, bytes]]:
    group = members.require_admin(connection, group_id, inviter_id).group
    invited = [each for each in dict.fromkeys(user_ids) if each != inviter_id]
    members.require_invitable(connection, group, invited)
    return _hand_out(connection, invited, handouts, now)


def _hand_out(
    connection: sqlite3.Connection, user_ids: Sequence[bytes], handouts: SlidingWindow, now: int
) -> list[dict[str, bytes]]:
    """Take a key package of each user, all or none. Whoever drains a user's packages makes others wait for them."""
    seconds = max((handouts.wait(user_id, now) for user_id in user_ids), default=0)
    if seconds:
        raise TooManyRequestsError("too many key packages of this user were handed out", seconds=seconds)
    packages = key_packages.take(connection, user_ids)
    for user_id in user_ids:
        handouts.record(user_id, now)
    return [
        {"user_id": user_id, "key_package_data": package} for user_id, package in zip(user_ids, packages, strict=True)
    ]
