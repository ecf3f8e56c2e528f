"""The route table."""

from aiohttp import web

from conclave import app_keys, errors as e
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
from conclave.web import files
from conclave.wire import results
from conclave.wire.exchange import Access, Endpoint
from conclave.wire.formats import Format
from conclave.wire.schemas import (
    accounts as account_schemas,
    commits as commit_schemas,
    docs as docs_schemas,
    events as event_schemas,
    groups as group_schemas,
    invites as invite_schemas,
    key_packages as key_package_schemas,
    members as member_schemas,
    messages as message_schemas,
    retention as retention_schemas,
)
from conclave.wire.schemas.base import ListQuery

API = "/api/v1"
_GROUP = f"{API}/groups/{{group_id}}"

ROUTES = (
    Endpoint(
        "GET",
        "/healthz",
        health.health,
        Access.ANYBODY,
        answer=results.HealthStatus,
        format=Format.JSON,
    ),
    Endpoint(
        "GET",
        "/readyz",
        health.ready,
        Access.ANYBODY,
        answer=results.ReadyStatus,
        format=Format.JSON,
    ),
    Endpoint(
        "GET",
        f"{API}/openapi.json",
        docs.document,
        Access.ANYBODY,
        query=docs_schemas.DocumentQuery,
        format=Format.JSON,
        media_type="application/json",
    ),
    Endpoint("GET", f"{API}/docs", docs.page, Access.ANYBODY, media_type="text/html"),
    Endpoint(
        "POST",
        f"{API}/register",
        accounts.register,
        Access.ANYBODY,
        body=account_schemas.RegisterRequest,
        answer=results.Registered,
        status=201,
        refuses=(e.ForbiddenError, e.ConflictError, e.TooManyRequestsError),
    ),
    Endpoint(
        "POST",
        f"{API}/login",
        accounts.login,
        Access.ANYBODY,
        body=account_schemas.LoginRequest,
        answer=results.LoggedIn,
        refuses=(e.CredentialsWrongError, e.TooManyRequestsError),
    ),
    Endpoint("POST", f"{API}/logout", accounts.logout, status=204),
    Endpoint("GET", f"{API}/me", users.me, answer=results.UserInfo),
    Endpoint(
        "PATCH", f"{API}/me", accounts.update, body=account_schemas.UpdateProfileRequest, answer=results.EmptyResult
    ),
    Endpoint(
        "POST",
        f"{API}/change-password",
        accounts.change_password,
        body=account_schemas.ChangePasswordRequest,
        answer=results.EmptyResult,
        refuses=(e.PasswordWrongError, e.TooManyRequestsError),
    ),
    Endpoint("POST", f"{API}/reset-account", accounts.reset, answer=results.EmptyResult),
    Endpoint(
        "POST",
        f"{API}/delete-account",
        accounts.delete,
        body=account_schemas.DeleteAccountRequest,
        answer=results.EmptyResult,
        refuses=(e.PasswordWrongError, e.TooManyRequestsError),
    ),
    Endpoint(
        "GET",
        f"{API}/users/{{username}}",
        users.by_name,
        answer=results.UserInfo,
        refuses=(e.NotFoundError,),
    ),
    Endpoint(
        "GET",
        f"{API}/users/by-id/{{user_id}}",
        users.by_id,
        answer=results.UserInfo,
        refuses=(e.NotFoundError,),
    ),
    Endpoint(
        "POST",
        f"{API}/key-packages",
        key_packages.upload,
        body=key_package_schemas.UploadKeyPackageRequest,
        answer=results.EmptyResult,
    ),
    Endpoint(
        "GET",
        f"{API}/key-packages/{{user_id}}",
        key_packages.fetch,
        answer=results.KeyPackageTaken,
        refuses=(e.NotFoundError, e.TooManyRequestsError),
        head=False,
    ),
    Endpoint(
        "POST",
        f"{API}/groups",
        groups.create,
        body=group_schemas.CreateGroupRequest,
        answer=results.GroupCreated,
        status=201,
        refuses=(e.ConflictError, e.QuotaError, e.TooManyRequestsError),
    ),
    Endpoint("GET", f"{API}/groups", groups.list_own, query=ListQuery, answer=results.GroupList),
    Endpoint(
        "GET",
        f"{API}/groups/public",
        groups.list_public,
        query=group_schemas.PublicGroupsQuery,
        answer=results.PublicGroupList,
    ),
    Endpoint(
        "PATCH",
        _GROUP,
        groups.update,
        Access.ADMIN,
        body=group_schemas.UpdateGroupRequest,
        answer=results.GroupUpdated,
        refuses=(e.BadRequestError, e.ConflictError, e.TooManyRequestsError),
    ),
    Endpoint("POST", f"{_GROUP}/delete", groups.delete, Access.ADMIN, answer=results.EmptyResult),
    Endpoint(
        "GET",
        f"{_GROUP}/group-info",
        commits.group_info,
        Access.MEMBER,
        answer=results.GroupInfoStored,
        refuses=(e.NotFoundError,),
    ),
    Endpoint(
        "GET",
        f"{_GROUP}/retention",
        retention.policy,
        Access.MEMBER,
        query=retention_schemas.RetentionQuery,
        answer=results.RetentionInfo,
    ),
    Endpoint(
        "GET",
        f"{API}/retention/configuration",
        retention.configuration,
        answer=results.RetentionConfiguration,
        format=Format.JSON,
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/join",
        members.join,
        answer=results.GroupInfoStored,
        refuses=(
            *(e.NotFoundError, e.NotPublicError, e.BannedError, e.ConflictError, e.BadRequestError),
            *(e.TooManyRequestsError, e.QuotaError),
        ),
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/invite",
        key_packages.invite,
        Access.ADMIN,
        body=key_package_schemas.InviteToGroupRequest,
        answer=results.MemberKeyPackages,
        refuses=(e.NotFoundError, e.ConflictError, e.BannedError, e.TooManyRequestsError),
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/escrow-invite",
        invites.escrow,
        Access.ADMIN,
        body=invite_schemas.EscrowInviteRequest,
        answer=results.EmptyResult,
        refuses=(e.NotFoundError, e.ConflictError, e.BannedError, e.TooManyRequestsError, e.QuotaError),
    ),
    Endpoint(
        "GET",
        f"{_GROUP}/invites",
        invites.list_of_group,
        Access.ADMIN,
        query=ListQuery,
        answer=results.GroupInviteList,
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/cancel-invite",
        invites.cancel,
        Access.ADMIN,
        body=invite_schemas.CancelInviteRequest,
        answer=results.EmptyResult,
        refuses=(e.NotFoundError,),
    ),
    Endpoint("GET", f"{API}/invites", invites.list_own, query=ListQuery, answer=results.InviteList),
    Endpoint(
        "POST",
        f"{API}/invites/{{invite_id}}/accept",
        invites.accept,
        Access.INVITEE,
        answer=results.EmptyResult,
        refuses=(e.NotFoundError,),
    ),
    Endpoint(
        "POST",
        f"{API}/invites/{{invite_id}}/decline",
        invites.decline,
        Access.INVITEE,
        answer=results.EmptyResult,
        refuses=(e.NotFoundError,),
    ),
    Endpoint("GET", f"{API}/welcomes", welcomes.list_own, query=ListQuery, answer=results.WelcomeList),
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
        Access.MEMBER,
        body=commit_schemas.UploadCommitRequest,
        answer=results.EmptyResult,
        refuses=(e.TooManyRequestsError, e.QuotaError),
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/messages",
        messages.send,
        Access.MEMBER,
        body=message_schemas.SendMessageRequest,
        answer=results.MessageSent,
        refuses=(e.TooManyRequestsError, e.QuotaError),
    ),
    Endpoint(
        "GET",
        f"{_GROUP}/messages",
        messages.fetch,
        Access.MEMBER,
        query=message_schemas.GetMessagesQuery,
        answer=results.FetchedMessages,
        head=False,
    ),
    Endpoint(
        "DELETE",
        f"{_GROUP}/messages/{{sequence_num}}",
        messages.take_back,
        Access.MEMBER,
        query=message_schemas.TakeBackQuery,
        answer=results.EmptyResult,
        refuses=(e.NotFoundError, e.NotSenderError, e.BadRequestError, e.TooManyRequestsError),
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/read",
        messages.read,
        Access.MEMBER,
        body=message_schemas.ReadReceiptRequest,
        answer=results.EmptyResult,
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/remove",
        members.remove,
        Access.ADMIN,
        body=member_schemas.RemoveMemberRequest,
        answer=results.EmptyResult,
        refuses=(e.NotFoundError, e.BadRequestError),
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/leave",
        members.leave,
        Access.MEMBER,
        body=commit_schemas.LeaveGroupRequest,
        answer=results.EmptyResult,
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/promote",
        members.promote,
        Access.ADMIN,
        body=member_schemas.PromoteMemberRequest,
        answer=results.EmptyResult,
        refuses=(e.NotFoundError, e.BadRequestError, e.ConflictError),
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/demote",
        members.demote,
        Access.ADMIN,
        body=member_schemas.DemoteMemberRequest,
        answer=results.EmptyResult,
        refuses=(e.NotFoundError, e.BadRequestError),
    ),
    Endpoint("GET", f"{_GROUP}/admins", members.list_admins, Access.MEMBER, query=ListQuery, answer=results.AdminList),
    Endpoint(
        "POST",
        f"{_GROUP}/ban",
        bans.ban,
        Access.ADMIN,
        body=member_schemas.BanMemberRequest,
        answer=results.EmptyResult,
        refuses=(e.NotFoundError,),
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/unban",
        bans.unban,
        Access.ADMIN,
        body=member_schemas.UnbanMemberRequest,
        answer=results.EmptyResult,
        refuses=(e.NotFoundError, e.BadRequestError),
    ),
    Endpoint("GET", f"{_GROUP}/banned", bans.list_banned, Access.ADMIN, query=ListQuery, answer=results.BannedUserList),
    Endpoint(
        "POST",
        f"{_GROUP}/external-join",
        commits.external_join,
        Access.MEMBER,
        body=commit_schemas.ExternalJoinRequest,
        answer=results.EmptyResult,
        refuses=(e.BadRequestError, e.ConflictError, e.TooManyRequestsError, e.QuotaError),
    ),
    Endpoint(
        "GET", f"{API}/sessions", sessions.list_own, query=ListQuery, answer=results.SessionList, format=Format.JSON
    ),
    Endpoint(
        "DELETE",
        f"{API}/sessions/{{id}}",
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
    """Add all endpoints to ``app``.

    aiohttp tries paths below the same prefix in the order of addition, so the busiest come first.
    """
    for route in sorted(ROUTES, key=lambda route: route.handler not in _BUSIEST):
        # Any text matches an id: a malformed id is a 400, not an unknown path.
        path = route.path.replace("}", ":[^/]+}")
        if route.method == "GET":
            app.router.add_get(path, route.handler, allow_head=route.head)
        else:
            app.router.add_route(route.method, path, route.handler)
    app.router.add_get(f"{API}/docs/{{name}}", docs.asset)
    if app[app_keys.CONFIG].web.enabled:
        files.add_routes(app.router, files.STATIC)
    app[app_keys.ENDPOINTS] = {route.handler: route for route in ROUTES}
