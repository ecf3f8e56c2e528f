"""The one route table."""

from aiohttp import web

from conclave import errors as e, keys
from conclave.api import accounts, commits, docs, events, groups, health, members, messages, retention, users
from conclave.wire.endpoint import Endpoint, Who
from conclave.wire.negotiate import Format
from conclave.wire.schemas import (
    accounts as account_schemas,
    commits as commit_schemas,
    events as event_schemas,
    groups as group_schemas,
    health as health_schemas,
    messages as message_schemas,
    retention as retention_schemas,
    users as user_schemas,
)
from conclave.wire.schemas.base import Empty

API = "/api/v1"
_GROUP = f"{API}/groups/{{group_id}}"

ROUTES = (
    Endpoint(
        "GET",
        "/healthz",
        health.health,
        Who.ANYBODY,
        answer=health_schemas.HealthResponse,
        format=Format.JSON,
    ),
    Endpoint("GET", f"{API}/openapi.json", docs.document, Who.ANYBODY, media_type="application/json"),
    Endpoint("GET", f"{API}/docs", docs.page, Who.ANYBODY, media_type="text/html"),
    Endpoint(
        "POST",
        f"{API}/register",
        accounts.register,
        Who.ANYBODY,
        body=account_schemas.RegisterRequest,
        answer=account_schemas.RegisterResponse,
        status=201,
        refuses=(e.ForbiddenError, e.ConflictError),
    ),
    Endpoint(
        "POST",
        f"{API}/login",
        accounts.login,
        Who.ANYBODY,
        body=account_schemas.LoginRequest,
        answer=account_schemas.LoginResponse,
        refuses=(e.CredentialsWrongError,),
    ),
    Endpoint("POST", f"{API}/logout", accounts.logout, status=204),
    Endpoint("GET", f"{API}/me", users.me, answer=user_schemas.UserInfoResponse),
    Endpoint(
        "GET",
        f"{API}/users/{{username}}",
        users.by_name,
        answer=user_schemas.UserInfoResponse,
        refuses=(e.NotFoundError,),
    ),
    Endpoint(
        "GET",
        f"{API}/users/by-id/{{user_id}}",
        users.by_id,
        answer=user_schemas.UserInfoResponse,
        refuses=(e.NotFoundError,),
    ),
    Endpoint(
        "POST",
        f"{API}/groups",
        groups.create,
        body=group_schemas.CreateGroupRequest,
        answer=group_schemas.CreateGroupResponse,
        status=201,
        refuses=(e.ConflictError,),
    ),
    Endpoint("GET", f"{API}/groups", groups.list_own, answer=group_schemas.ListGroupsResponse),
    Endpoint(
        "GET",
        f"{API}/groups/public",
        groups.list_public,
        query=group_schemas.PublicGroupsQuery,
        answer=group_schemas.ListPublicGroupsResponse,
    ),
    Endpoint(
        "PATCH",
        _GROUP,
        groups.update,
        Who.ADMIN,
        body=group_schemas.UpdateGroupRequest,
        answer=Empty,
        refuses=(e.BadRequestError, e.ConflictError),
    ),
    Endpoint("POST", f"{_GROUP}/delete", groups.delete, Who.ADMIN, answer=Empty),
    Endpoint(
        "GET",
        f"{_GROUP}/group-info",
        commits.group_info,
        Who.MEMBER,
        answer=commit_schemas.GetGroupInfoResponse,
        refuses=(e.NotFoundError,),
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/commit",
        commits.upload,
        Who.MEMBER,
        body=commit_schemas.UploadCommitRequest,
        answer=Empty,
    ),
    Endpoint(
        "GET",
        f"{_GROUP}/retention",
        retention.policy,
        Who.MEMBER,
        answer=retention_schemas.GetRetentionPolicyResponse,
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/join",
        members.join,
        answer=commit_schemas.GetGroupInfoResponse,
        refuses=(e.NotFoundError, e.NotPublicError, e.ConflictError, e.BadRequestError),
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/leave",
        members.leave,
        Who.MEMBER,
        body=commit_schemas.LeaveGroupRequest,
        answer=Empty,
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/messages",
        messages.send,
        Who.MEMBER,
        body=message_schemas.SendMessageRequest,
        answer=message_schemas.SendMessageResponse,
    ),
    Endpoint(
        "GET",
        f"{_GROUP}/messages",
        messages.fetch,
        Who.MEMBER,
        query=message_schemas.GetMessagesQuery,
        answer=message_schemas.GetMessagesResponse,
        head=False,
    ),
    Endpoint(
        "GET",
        f"{API}/events",
        events.stream,
        query=event_schemas.EventsQuery,
        head=False,
        media_type="text/event-stream",
    ),
)


def add_routes(app: web.Application) -> None:
    """Give ``app`` its endpoints."""
    for route in ROUTES:
        path = route.path.replace("}", ":[^/]+}")  # whatever stands for an id is a path of ours, if a malformed one
        if route.method == "GET":
            app.router.add_get(path, route.handler, allow_head=route.head)
        else:
            app.router.add_route(route.method, path, route.handler)
    app.router.add_get(f"{API}/docs/{{name}}", docs.asset)
    app[keys.ENDPOINTS] = {route.handler: route for route in ROUTES}
