"""The responses of the server as frozen dataclasses. Ids are UUIDs, times Unix seconds, lifetimes seconds.

Clients parse responses into these classes, and the server writes them by derived schemas (``schemas.base.schema_of``).
Fields with a default are absent in responses of older servers.
"""

from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar
from uuid import UUID

from marshmallow import fields, validate

from conclave.retention.policy import Source
from conclave.strict_fields import Text


class WireMessage:
    """A message that the server sends: a response or an event."""

    wire: ClassVar[str]
    """Its name in the protocol."""


def _one_of(*words: str, default: Any = MISSING) -> Any:
    """Return a text field whose value is one of ``words``."""
    return field(default=default, metadata={"field": Text(validate=validate.OneOf(words))})


@dataclass(frozen=True)
class Registered(WireMessage):
    """The new account's id."""

    wire = "RegisterResponse"

    user_id: UUID


@dataclass(frozen=True)
class LoggedIn(WireMessage):
    """A session's token. The server stores only its hash."""

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
    """A group as its members see it. ``message_expiry_seconds``: -1 (inherit), 0 (delete-after-fetch), or seconds."""

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
    """The caller's groups. ``more``, here and in other lists: whether there are more after the last one."""

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
    """The matching public groups."""

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
    """The messages that expire at once by the change: how many, and the Unix second of the oldest; 0 for none."""

    wire = "UpdateGroupResponse"

    messages_expiring: int = 0
    oldest_expiring: int = 0


@dataclass(frozen=True)
class RetentionInfo(WireMessage):
    """The retention policy of the server and of a group: -1 for off or inherit, 0 for delete-after-fetch, or seconds.

    ``policy_source``: where the effective expiry comes from. ``min_lifetime_seconds``: younger messages are not erased;
    0 for no limit. ``legal_hold``: whether a legal hold covers the whole group. ``held_by``: for admins, at most 100
    members who have not fetched all messages yet. ``hidden_before``: messages from before this Unix second are hidden
    for ever, even under a later policy; 0 for none. ``taken_back``: numbers of messages that were taken back, at most
    1,000: the last ones, or the first ones above the requested number. ``expiry_set_by``: the admin who has set the
    group's expiry; empty if none or unknown. ``more``: whether more messages were taken back than are listed.
    ``last_sequence_num``: the greatest message number of the group so far; 0 for none.
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
    """The number of the sent message."""

    wire = "SendMessageResponse"

    sequence_num: int


@dataclass(frozen=True)
class FetchedMessage(WireMessage):
    """A message. ``expires_at``: the Unix second from which the server does not return it; 0 for none.

    ``self_destruct_seconds``: how long each reader sees it after reading; 0: for ever. ``redacted``: the caller may not
    see it, and ``mls_message`` is empty.
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
class FetchedMessages(WireMessage):
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
    """A key package of each invited user except the caller."""

    wire = "InviteToGroupResponse"

    member_key_packages: tuple[MemberKeyPackage, ...]


@dataclass(frozen=True)
class InviteInfo(WireMessage):
    """A pending invite. ``created_at``: Unix seconds."""

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
    """An MLS welcome for a new member."""

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
    """A banned user. ``banned_at``: Unix seconds. ``banned_by``: empty once that account is deleted."""

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
    """A session. Times are in Unix seconds. ``current``: whether it is the session of the request."""

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
    """The operator's settings in milliseconds; unset ones have no key. A lifetime of 0 is delete-after-fetch.

    ``policies``: at `*` the default policy, if any, and the operator's policies for groups of the caller by group id.
    ``limits``: the bounds within which admins can set `min_lifetime` and `max_lifetime`.
    """

    wire = "RetentionConfigurationResponse"

    policies: dict[str, dict[str, int]] = field(metadata={"field": fields.Dict(Text(), _milliseconds(*_LIFETIMES))})
    limits: dict[str, dict[str, int]] = field(
        metadata={"field": fields.Dict(Text(validate=validate.OneOf(_LIFETIMES)), _milliseconds("min", "max"))}
    )


@dataclass(frozen=True)
class ErrorBody(WireMessage):
    """An error, with the fields that both formats have."""

    wire = "ErrorResponse"

    message: str
    error_code: int


@dataclass(frozen=True)
class EmptyResult(WireMessage):
    """A response without fields."""

    wire = "Empty"


@dataclass(frozen=True)
class HealthStatus(WireMessage):
    """The health of the server: degraded while a part has a fault, such as cleanup or the clock."""

    wire = "HealthResponse"

    status: str = _one_of("ok", "degraded")


@dataclass(frozen=True)
class ReadyStatus(WireMessage):
    """The server is ready. Otherwise the response is an error."""

    wire = "ReadyResponse"

    status: str = _one_of("ready")
