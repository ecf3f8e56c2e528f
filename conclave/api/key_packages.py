"""Key packages: uploading them, and handing out each regular one once."""

import asyncio

from aiohttp import web

from conclave import app_keys
from conclave.actions import key_packages
from conclave.api.action_runner import run_action
from conclave.auth import tokens
from conclave.wire.exchange import path_id, read_body, reply, reply_empty
from conclave.wire.schemas.key_packages import InviteToGroup, UploadKeyPackages

SMALL_INVITE = 64
"""Key packages of up to 64 users, 1 MiB, are written at once. Larger responses, up to 16 MiB, take turns."""


async def upload(request: web.Request) -> web.Response:
    """POST /key-packages: Upload key packages, all or nothing."""
    user_id = request[tokens.CALLER].user_id
    body = await read_body(request, UploadKeyPackages)
    await run_action(
        request, key_packages.upload, user_id, body.regular, body.last_resorts, body.signing_key_fingerprint
    )
    return reply_empty(request)


async def fetch(request: web.Request) -> web.Response:
    """GET /key-packages/{user_id}: Take a key package of a user. A regular one is handed out once."""
    package = await run_action(request, key_packages.fetch, request.app[app_keys.CONTEXT], path_id(request, "user_id"))
    return reply(request, package)


async def invite(request: web.Request) -> web.StreamResponse:
    """POST /groups/{group_id}/invite: Take a key package of each user to invite."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    body = await read_body(request, InviteToGroup)
    arguments = request.app[app_keys.CONTEXT], group_id, user_id, body.user_ids
    if len(body.user_ids) <= SMALL_INVITE:
        return reply(request, {"member_key_packages": await run_action(request, key_packages.invite, *arguments)})
    async with request.app[app_keys.KEY_PACKAGE_TURN]:
        packages = await run_action(request, key_packages.invite, *arguments)
        return await asyncio.to_thread(reply, request, {"member_key_packages": packages})
