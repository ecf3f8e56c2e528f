"""The one route table."""

from aiohttp import web

from conclave import errors as e, keys
from conclave.api import (
    accounts,
    bans,
    commits,
    docs,
    events,
    groups,
    health,
    invites,
    key_packages,
    members,
    messages,
    retention,
    sessions,
    users,
    welcomes,
)
from conclave.wire.endpoint import Endpoint, Who
from conclave.wire.negotiate import Format
from conclave.wire.schemas import (
    accounts as account_schemas,
    commits as commit_schemas,
    events as event_schemas,
    groups as group_schemas,
    health as health_schemas,
    invites as invite_schemas,
    key_packages as key_package_schemas,
    members as member_schemas,
    messages as message_schemas,
    retention as retention_schemas,
    sessions as session_schemas,
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
    Endpoint(
        "GET",
        "/readyz",
        health.ready,
        Who.ANYBODY,
        answer=health_schemas.ReadyResponse,
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
        refuses=(e.ForbiddenError, e.ConflictError, e.TooManyRequestsError),
    ),
    Endpoint(
        "POST",
        f"{API}/login",
        accounts.login,
        Who.ANYBODY,
        body=account_schemas.LoginRequest,
        answer=account_schemas.LoginResponse,
        refuses=(e.CredentialsWrongError, e.TooManyRequestsError),
    ),
    Endpoint("POST", f"{API}/logout", accounts.logout, status=204),
    Endpoint("GET", f"{API}/me", users.me, answer=user_schemas.UserInfoResponse),
    Endpoint("PATCH", f"{API}/me", accounts.update, body=account_schemas.UpdateProfileRequest, answer=Empty),
    Endpoint(
        "POST",
        f"{API}/change-password",
        accounts.change_password,
        body=account_schemas.ChangePasswordRequest,
        answer=Empty,
        refuses=(e.PasswordWrongError, e.TooManyRequestsError),
    ),
    Endpoint("POST", f"{API}/reset-account", accounts.reset, answer=Empty),
    Endpoint(
        "POST",
        f"{API}/delete-account",
        accounts.delete,
        body=account_schemas.DeleteAccountRequest,
        answer=Empty,
        refuses=(e.PasswordWrongError, e.TooManyRequestsError),
    ),
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
        f"{API}/key-packages",
        key_packages.upload,
        body=key_package_schemas.UploadKeyPackageRequest,
        answer=Empty,
    ),
    Endpoint(
        "GET",
        f"{API}/key-packages/{{user_id}}",
        key_packages.fetch,
        answer=key_package_schemas.GetKeyPackageResponse,
        refuses=(e.NotFoundError, e.TooManyRequestsError),
        head=False,
    ),
    Endpoint(
        "POST",
        f"{API}/groups",
        groups.create,
        body=group_schemas.CreateGroupRequest,
        answer=group_schemas.CreateGroupResponse,
        status=201,
        refuses=(e.ConflictError, e.QuotaError),
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
        answer=group_schemas.UpdateGroupResponse,
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
        "GET",
        f"{_GROUP}/retention",
        retention.policy,
        Who.MEMBER,
        answer=retention_schemas.GetRetentionPolicyResponse,
    ),
    Endpoint(
        "GET",
        f"{API}/retention/configuration",
        retention.configuration,
        answer=retention_schemas.RetentionConfigurationResponse,
        format=Format.JSON,
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/join",
        members.join,
        answer=commit_schemas.GetGroupInfoResponse,
        refuses=(e.NotFoundError, e.NotPublicError, e.BannedError, e.ConflictError, e.BadRequestError),
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/invite",
        key_packages.invite,
        Who.ADMIN,
        body=key_package_schemas.InviteToGroupRequest,
        answer=key_package_schemas.InviteToGroupResponse,
        refuses=(e.NotFoundError, e.ConflictError, e.BannedError, e.TooManyRequestsError),
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/escrow-invite",
        invites.escrow,
        Who.ADMIN,
        body=invite_schemas.EscrowInviteRequest,
        answer=Empty,
        refuses=(e.NotFoundError, e.ConflictError, e.BannedError),
    ),
    Endpoint(
        "GET",
        f"{_GROUP}/invites",
        invites.list_of_group,
        Who.ADMIN,
        answer=invite_schemas.ListGroupPendingInvitesResponse,
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/cancel-invite",
        invites.cancel,
        Who.ADMIN,
        body=invite_schemas.CancelInviteRequest,
        answer=Empty,
        refuses=(e.NotFoundError,),
    ),
    Endpoint("GET", f"{API}/invites", invites.list_own, answer=invite_schemas.ListPendingInvitesResponse),
    Endpoint(
        "POST",
        f"{API}/invites/{{invite_id}}/accept",
        invites.accept,
        Who.INVITEE,
        answer=Empty,
        refuses=(e.NotFoundError,),
    ),
    Endpoint(
        "POST",
        f"{API}/invites/{{invite_id}}/decline",
        invites.decline,
        Who.INVITEE,
        answer=Empty,
        refuses=(e.NotFoundError,),
    ),
    Endpoint("GET", f"{API}/welcomes", welcomes.list_own, answer=invite_schemas.ListPendingWelcomesResponse),
    Endpoint(
        "POST",
        f"{API}/welcomes/{{welcome_id}}/accept",
        welcomes.accept,
        status=204,
        refuses=(e.NotFoundError,),
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/commit",
        commits.upload,
        Who.MEMBER,
        body=commit_schemas.UploadCommitRequest,
        answer=Empty,
        refuses=(e.TooManyRequestsError, e.QuotaError),
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/messages",
        messages.send,
        Who.MEMBER,
        body=message_schemas.SendMessageRequest,
        answer=message_schemas.SendMessageResponse,
        refuses=(e.TooManyRequestsError, e.QuotaError),
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
        "POST",
        f"{_GROUP}/read",
        messages.read,
        Who.MEMBER,
        body=message_schemas.ReadReceiptRequest,
        answer=Empty,
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/remove",
        members.remove,
        Who.ADMIN,
        body=member_schemas.RemoveMemberRequest,
        answer=Empty,
        refuses=(e.NotFoundError, e.BadRequestError),
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
        f"{_GROUP}/promote",
        members.promote,
        Who.ADMIN,
        body=member_schemas.PromoteMemberRequest,
        answer=Empty,
        refuses=(e.NotFoundError, e.BadRequestError, e.ConflictError),
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/demote",
        members.demote,
        Who.ADMIN,
        body=member_schemas.DemoteMemberRequest,
        answer=Empty,
        refuses=(e.NotFoundError, e.BadRequestError),
    ),
    Endpoint("GET", f"{_GROUP}/admins", members.list_admins, Who.MEMBER, answer=member_schemas.ListAdminsResponse),
    Endpoint(
        "POST",
        f"{_GROUP}/ban",
        bans.ban,
        Who.ADMIN,
        body=member_schemas.BanMemberRequest,
        answer=Empty,
        refuses=(e.NotFoundError,),
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/unban",
        bans.unban,
        Who.ADMIN,
        body=member_schemas.UnbanMemberRequest,
        answer=Empty,
        refuses=(e.NotFoundError, e.BadRequestError),
    ),
    Endpoint("GET", f"{_GROUP}/banned", bans.list_banned, Who.ADMIN, answer=member_schemas.ListBannedUsersResponse),
    Endpoint(
        "POST",
        f"{_GROUP}/external-join",
        commits.external_join,
        Who.MEMBER,
        body=commit_schemas.ExternalJoinRequest,
        answer=Empty,
        refuses=(e.BadRequestError, e.TooManyRequestsError),
    ),
    Endpoint(
        "GET", f"{API}/sessions", sessions.list_own, answer=session_schemas.ListSessionsResponse, format=Format.JSON
    ),
    Endpoint(
        "DELETE",
        f"{API}/sessions/{{session_id}}",
        sessions.revoke,
        status=204,
        refuses=(e.NotFoundError,),
        format=Format.JSON,
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


_BUSIEST = (messages.fetch, messages.send)


def add_routes(app: web.Application) -> None:
    """Give ``app`` its endpoints.

    Paths below the same prefix are tried in the order in which they were added: the busiest comes first.
    """
    for route in sorted(ROUTES, key=lambda route: route.handler not in _BUSIEST):
        # Any text may stand for an id: a malformed id is an error of its own, not an unknown path.
        path = route.path.replace("}", ":[^/]+}")
        if route.method == "GET":
            app.router.add_get(path, route.handler, allow_head=route.head)
        else:
            app.router.add_route(route.method, path, route.handler)
    app.router.add_get(f"{API}/docs/{{name}}", docs.asset)
    app[keys.ENDPOINTS] = {route.handler: route for route in ROUTES}
