"""What the server answers, as frozen values. Ids are UUIDs, times Unix seconds of the server, lifetimes seconds.

Clients read answers into these, and the server writes by the schemas that ``schemas.responses`` makes of them. A field
with a default is one that an older server does not send.
"""

from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar
from uuid import UUID

from marshmallow import fields, validate

from conclave.retention.policy import Source
from conclave.strict_fields import Text


class WireMessage:
    """A message that the server sends: an answer or an event."""

    wire: ClassVar[str]
    """Its name in the protocol."""


def _one_of(*words: str, default: Any = MISSING) -> Any:
    """Return a field of a text that is one of ``words``."""
    return field(default=default, metadata={"field": Text(validate=validate.OneOf(words))})


@dataclass(frozen=True)
class Registered(WireMessage):
    """The new account's id."""

    wire = "RegisterResponse"

    user_id: UUID


@dataclass(frozen=True)
class LoggedIn(WireMessage):
    """A session's token. It is shown here once, and stored nowhere."""

    wire = "LoginResponse"

    token: str = field(repr=False)
    user_id: UUID
    username: str


@dataclass(frozen=True)
class UserInfo(WireMessage):
    """An account."""

    wire = "UserInfoResponse"

    user_id: UUID
    username: str
    alias: str
    signing_key_fingerprint: str


@dataclass(frozen=True)
class MemberInfo(UserInfo):
    """A member of a group; ``role``: "admin" or "member"."""

    wire = "GroupMember"

    role: str


@dataclass(frozen=True)
class GroupDetails(WireMessage):
    """A group as its members see it. ``message_expiry_seconds``: what its admins set: -1 inherit, 0, or seconds."""

    wire = "GroupInfo"

    group_id: UUID
    alias: str
    members: tuple[MemberInfo, ...]
    group_name: str
    mls_group_id: str
    message_expiry_seconds: int
    visibility: str


@dataclass(frozen=True)
class GroupList(WireMessage):
    """The caller's groups. ``more``, here and in other lists: whether more follow after the last one."""

    wire = "ListGroupsResponse"

    groups: tuple[GroupDetails, ...]
    more: bool = False


@dataclass(frozen=True)
class PublicGroupInfo(WireMessage):
    """A public group as any user sees it."""

    wire = "PublicGroupInfo"

    group_id: UUID
    group_name: str
    alias: str
    member_count: int


@dataclass(frozen=True)
class PublicGroupList(WireMessage):
    """The public groups that match."""

    wire = "ListPublicGroupsResponse"

    groups: tuple[PublicGroupInfo, ...]
    more: bool = False


@dataclass(frozen=True)
class GroupCreated(WireMessage):
    """The new group's id."""

    wire = "CreateGroupResponse"

    group_id: UUID


@dataclass(frozen=True)
class GroupUpdated(WireMessage):
    """What expires at once by the change: how many messages, and when the oldest was stored, Unix seconds; 0 and 0."""

    wire = "UpdateGroupResponse"

    messages_expiring: int = 0
    oldest_expiring: int = 0


@dataclass(frozen=True)
class RetentionInfo(WireMessage):
    """Both layers of retention, and what follows: -1 for off or inherit, 0 for delete-after-fetch, or seconds.

    ``policy_source``: what the effective expiry comes from. ``min_lifetime_seconds``: nothing younger is erased; 0 for
    no bound. ``legal_hold``: whether the operator keeps everything of the group from being erased. ``held_by``: for
    admins, the members whose missing fetch holds messages back, at most 100. ``hidden_before``: what was created before
    this Unix second is hidden for ever, also under a later policy; 0 for nothing. ``taken_back``: numbers of
    messages that were taken back, at most 1,000: the last that were, or the first above those that were asked for.
    ``expiry_set_by``: the admin who has set the group's expiry; empty if none has, or if that is not known any more.
    ``more``: whether other messages were taken back, or others with greater numbers than those that are listed.
    ``last_sequence_num``: the greatest number that a message of the group has got so far; 0: it never had any.
    """

    wire = "GetRetentionPolicyResponse"

    server_retention_seconds: int
    group_expiry_seconds: int
    effective_expiry_seconds: int
    min_lifetime_seconds: int = 0
    policy_source: str = _one_of(*(each.value for each in Source), default="")
    legal_hold: bool = False
    held_by: tuple[UUID, ...] = ()
    hidden_before: int = 0
    taken_back: tuple[int, ...] = ()
    expiry_set_by: UUID | None = None
    more: bool = False
    last_sequence_num: int = 0


@dataclass(frozen=True)
class GroupInfoStored(WireMessage):
    """The stored group info."""

    wire = "GetGroupInfoResponse"

    group_info: bytes


@dataclass(frozen=True)
class MessageSent(WireMessage):
    """The number that the message got."""

    wire = "SendMessageResponse"

    sequence_num: int


@dataclass(frozen=True)
class FetchedMessage(WireMessage):
    """A message; times in Unix seconds. ``expires_at``: the first second at which it is not served; 0 for none.

    ``self_destruct_seconds``: how long each reader may see it once it was read; 0: for ever. ``redacted``: the caller
    may not see it, or not any more; ``mls_message`` is empty.
    """

    wire = "StoredMessage"

    sequence_num: int
    sender_id: UUID
    mls_message: bytes = field(repr=False)
    created_at: int
    self_destruct_seconds: int = 0
    redacted: bool = False
    expires_at: int = 0


@dataclass(frozen=True)
class MessagePage(WireMessage):
    """A page of messages, ascending."""

    wire = "GetMessagesResponse"

    messages: tuple[FetchedMessage, ...]


@dataclass(frozen=True)
class KeyPackageTaken(WireMessage):
    """A key package of the user."""

    wire = "GetKeyPackageResponse"

    key_package_data: bytes


@dataclass(frozen=True)
class MemberKeyPackage(WireMessage):
    """A key package of one user."""

    wire = "MemberKeyPackage"

    user_id: UUID
    key_package_data: bytes


@dataclass(frozen=True)
class MemberKeyPackages(WireMessage):
    """A key package of each user but the caller, to make the commit and the welcome with."""

    wire = "InviteToGroupResponse"

    member_key_packages: tuple[MemberKeyPackage, ...]


@dataclass(frozen=True)
class InviteInfo(WireMessage):
    """An invite that waits for an answer; ``created_at`` in Unix seconds."""

    wire = "PendingInvite"

    invite_id: UUID
    group_id: UUID
    group_name: str
    group_alias: str
    inviter_username: str
    created_at: int
    invitee_id: UUID
    inviter_id: UUID


@dataclass(frozen=True)
class InviteList(WireMessage):
    """The caller's invites."""

    wire = "ListPendingInvitesResponse"

    invites: tuple[InviteInfo, ...]
    more: bool = False


@dataclass(frozen=True)
class GroupInviteList(InviteList):
    """A group's invites."""

    wire = "ListGroupPendingInvitesResponse"


@dataclass(frozen=True)
class WelcomeInfo(WireMessage):
    """What a new member needs to take part."""

    wire = "PendingWelcome"

    group_id: UUID
    group_alias: str
    welcome_message: bytes = field(repr=False)
    welcome_id: UUID


@dataclass(frozen=True)
class WelcomeList(WireMessage):
    """The caller's welcomes."""

    wire = "ListPendingWelcomesResponse"

    welcomes: tuple[WelcomeInfo, ...]
    more: bool = False


@dataclass(frozen=True)
class AdminList(WireMessage):
    """The admins of a group."""

    wire = "ListAdminsResponse"

    admins: tuple[MemberInfo, ...]
    more: bool = False


@dataclass(frozen=True)
class BannedUserInfo(WireMessage):
    """A banned user. ``banned_at``: Unix seconds. ``banned_by``: empty once that account is gone."""

    wire = "BannedUser"

    user_id: UUID
    username: str
    alias: str
    banned_at: int
    banned_by: UUID | None


@dataclass(frozen=True)
class BannedUserList(WireMessage):
    """The users who are banned from a group."""

    wire = "ListBannedUsersResponse"

    users: tuple[BannedUserInfo, ...]
    more: bool = False


@dataclass(frozen=True)
class SessionInfo(WireMessage):
    """A session. Times are in Unix seconds. ``current``: whether the caller uses this one now."""

    wire = "SessionInfo"

    id: UUID
    created_at: int
    last_used_at: int
    expires_at: int
    current: bool


@dataclass(frozen=True)
class SessionList(WireMessage):
    """The caller's sessions, the newest first."""

    wire = "ListSessionsResponse"

    sessions: tuple[SessionInfo, ...]
    more: bool = False


_LIFETIMES = ("min_lifetime", "max_lifetime")


def _milliseconds(*names: str) -> fields.Field[Any]:
    return fields.Dict(Text(validate=validate.OneOf(names)), fields.Integer(validate=validate.Range(0)))


@dataclass(frozen=True)
class RetentionConfiguration(WireMessage):
    """What the operator has set, in milliseconds; what is not set has no key. A lifetime of 0 is delete-after-fetch.

    ``policies``: that of groups without one of their own at `*`, if there is any, and the operator's for groups of the
    caller by their id. ``limits``: the bounds within which admins can set `min_lifetime` and `max_lifetime`.
    """

    wire = "RetentionConfigurationResponse"

    policies: dict[str, dict[str, int]] = field(metadata={"field": fields.Dict(Text(), _milliseconds(*_LIFETIMES))})
    limits: dict[str, dict[str, int]] = field(
        metadata={"field": fields.Dict(Text(validate=validate.OneOf(_LIFETIMES)), _milliseconds("min", "max"))}
    )


@dataclass(frozen=True)
class ErrorBody(WireMessage):
    """An error, as far as both formats tell of it."""

    wire = "ErrorResponse"

    message: str
    error_code: int


@dataclass(frozen=True)
class EmptyResult(WireMessage):
    """A response without fields."""

    wire = "Empty"


@dataclass(frozen=True)
class HealthStatus(WireMessage):
    """The health of the server: degraded while a part does not work, such as cleanup or the clock."""

    wire = "HealthResponse"

    status: str = _one_of("ok", "degraded")


@dataclass(frozen=True)
class ReadyStatus(WireMessage):
    """Whether the server serves. While it does not, the answer is an error."""

    wire = "ReadyResponse"

    status: str = _one_of("ready")
