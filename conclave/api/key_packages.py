"""Key packages: users upload them, and each regular one is handed out once."""

from aiohttp import web

from conclave import app_keys
from conclave.actions import key_packages
from conclave.api.action_runner import act
from conclave.auth import tokens
from conclave.response_memory import cost
from conclave.wire.exchange import path_id, read_body, reply, reply_empty
from conclave.wire.fields import KEY_PACKAGE_BYTES
from conclave.wire.handover import SHARE
from conclave.wire.pieces import reply_list
from conclave.wire.schemas.key_packages import InviteToGroup, UploadKeyPackages


async def upload(request: web.Request) -> web.Response:
    """POST /key-packages: Upload key packages, all or nothing."""
    user_id = request[tokens.CALLER].user_id
    body = await read_body(request, UploadKeyPackages)
    await act(request, key_packages.upload, user_id, body.regular, body.last_resorts, body.signing_key_fingerprint)
    return reply_empty(request)


async def fetch(request: web.Request) -> web.Response:
    """GET /key-packages/{user_id}: Take a key package of a user; a regular one is handed out once."""
    package = await act(request, key_packages.fetch, request.app[app_keys.CONTEXT], path_id(request, "user_id"))
    return reply(request, package)


async def invite(request: web.Request) -> web.StreamResponse:
    """POST /groups/{group_id}/invite: Take a key package of each user who is to be invited."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    body = await read_body(request, InviteToGroup)
    invited = len(body.user_ids)
    await request[SHARE].reserve(cost(invited * KEY_PACKAGE_BYTES[1], invited))
    packages = await act(request, key_packages.invite, request.app[app_keys.CONTEXT], group_id, user_id, body.user_ids)
    return await reply_list(request, packages)
