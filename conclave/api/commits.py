"""Uploading commits and reading group info."""

from aiohttp import web

from conclave import app_keys
from conclave.actions import commits
from conclave.actions.commits import Commit
from conclave.api.action_runner import read_action, run_action
from conclave.auth import tokens
from conclave.wire.exchange import path_id, read_body, reply, reply_empty
from conclave.wire.schemas.commits import ExternalJoin, UploadCommit


async def upload(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/commit: Store a commit, group info, and an MLS id, each if present."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    body = await read_body(request, UploadCommit)
    commit = Commit(body.commit_message, body.group_info, body.mls_group_id)
    if commit.commit_message:
        await request.app[app_keys.SENDING].prepare(group_id, user_id, len(commit.commit_message))
    await run_action(request, commits.upload, request.app[app_keys.CONTEXT], group_id, user_id, commit)
    return reply_empty(request)


async def external_join(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/external-join: Announce that the caller joined the MLS group, and store the commit."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    body = await read_body(request, ExternalJoin)
    commit = Commit(body.commit_message, body.group_info, body.mls_group_id)
    if commit.commit_message:
        await request.app[app_keys.SENDING].prepare(group_id, user_id, len(commit.commit_message))
    await run_action(request, commits.external_join, request.app[app_keys.CONTEXT], group_id, user_id, commit)
    return reply_empty(request)


async def group_info(request: web.Request) -> web.Response:
    """GET /groups/{group_id}/group-info: The stored group info."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    info = await read_action(request, commits.group_info, request.app[app_keys.CONTEXT], group_id, user_id)
    return reply(request, {"group_info": info})
