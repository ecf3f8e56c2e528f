"""What the server answers, as frozen values. Ids are UUIDs, times Unix seconds of the server, lifetimes seconds.

``wire`` is the name of the message in the protocol. A field with a default is one that an older server does not send.
"""

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID


@dataclass(frozen=True)
class Registered:
    """A new account."""

    wire: ClassVar[str] = "RegisterResponse"

    user_id: UUID


@dataclass(frozen=True)
class LoggedIn:
    """A session that has begun. The token is not shown by repr."""

    wire: ClassVar[str] = "LoginResponse"

    token: str = field(repr=False)
    user_id: UUID
    username: str


@dataclass(frozen=True)
class User:
    """An account."""

    wire: ClassVar[str] = "UserInfoResponse"

    user_id: UUID
    username: str
    alias: str
    signing_key_fingerprint: str


@dataclass(frozen=True)
class Member(User):
    """A member of a group; ``role``: "admin" or "member"."""

    wire: ClassVar[str] = "GroupMember"

    role: str


@dataclass(frozen=True)
class Group:
    """A group of the user's own. ``message_expiry_seconds``: what its admins set: -1 inherit, 0, or seconds."""

    wire: ClassVar[str] = "GroupInfo"

    group_id: UUID
    alias: str
    members: tuple[Member, ...]
    group_name: str
    mls_group_id: str
    message_expiry_seconds: int
    visibility: str


@dataclass(frozen=True)
class Groups:
    """The user's own groups."""

    wire: ClassVar[str] = "ListGroupsResponse"

    groups: tuple[Group, ...]


@dataclass(frozen=True)
class PublicGroup:
    """A group that anybody can join."""

    wire: ClassVar[str] = "PublicGroupInfo"

    group_id: UUID
    group_name: str
    alias: str
    member_count: int


@dataclass(frozen=True)
class PublicGroups:
    """Public groups that match."""

    wire: ClassVar[str] = "ListPublicGroupsResponse"

    groups: tuple[PublicGroup, ...]


@dataclass(frozen=True)
class GroupCreated:
    """A new group."""

    wire: ClassVar[str] = "CreateGroupResponse"

    group_id: UUID


@dataclass(frozen=True)
class GroupUpdated:
    """What a change of the policy hides: how many messages, and when the oldest was stored."""

    wire: ClassVar[str] = "UpdateGroupResponse"

    messages_expiring: int = 0
    oldest_expiring: int = 0


@dataclass(frozen=True)
class Retention:
    """How long a group's messages live.

    ``effective_expiry_seconds``: -1 for ever, 0 until all have fetched, or seconds.
    ``held_by``: for admins, who has not fetched and so holds a delete-after-fetch group back. ``hidden_before``: what
    was created before this Unix second is hidden for ever; 0: nothing is.
    """

    wire: ClassVar[str] = "GetRetentionPolicyResponse"

    server_retention_seconds: int
    group_expiry_seconds: int
    effective_expiry_seconds: int
    min_lifetime_seconds: int = 0
    policy_source: str = ""
    legal_hold: bool = False
    held_by: tuple[UUID, ...] = ()
    hidden_before: int = 0


@dataclass(frozen=True)
class GroupInfoStored:
    """The group info that members have deposited."""

    wire: ClassVar[str] = "GetGroupInfoResponse"

    group_info: bytes


@dataclass(frozen=True)
class Sent:
    """The number that a message got."""

    wire: ClassVar[str] = "SendMessageResponse"

    sequence_num: int


@dataclass(frozen=True)
class StoredMessage:
    """A message. ``expires_at``: the first second at which it is not served any more; 0: it does not expire by age.

    ``self_destruct_seconds``: how long each reader may see it once it was read; 0: for ever. ``redacted``: the user may
    not see it any more.
    """

    wire: ClassVar[str] = "StoredMessage"

    sequence_num: int
    sender_id: UUID
    mls_message: bytes = field(repr=False)
    created_at: int
    self_destruct_seconds: int = 0
    redacted: bool = False
    expires_at: int = 0


@dataclass(frozen=True)
class Page:
    """Messages in ascending order."""

    wire: ClassVar[str] = "GetMessagesResponse"

    messages: tuple[StoredMessage, ...]


@dataclass(frozen=True)
class KeyPackageTaken:
    """A key package of somebody."""

    wire: ClassVar[str] = "GetKeyPackageResponse"

    key_package_data: bytes


@dataclass(frozen=True)
class MemberKeyPackage:
    """A key package of somebody who is to be invited."""

    wire: ClassVar[str] = "MemberKeyPackage"

    user_id: UUID
    key_package_data: bytes


@dataclass(frozen=True)
class KeyPackages:
    """Key packages of all who are to be invited."""

    wire: ClassVar[str] = "InviteToGroupResponse"

    member_key_packages: tuple[MemberKeyPackage, ...]


@dataclass(frozen=True)
class Invite:
    """An invite that waits for an answer."""

    wire: ClassVar[str] = "PendingInvite"

    invite_id: UUID
    group_id: UUID
    group_name: str
    group_alias: str
    inviter_username: str
    created_at: int
    invitee_id: UUID
    inviter_id: UUID


@dataclass(frozen=True)
class Invites:
    """The user's own invites, or those of a group."""

    wire: ClassVar[str] = "ListPendingInvitesResponse"

    invites: tuple[Invite, ...]


@dataclass(frozen=True)
class Welcome:
    """What a new member needs to take part."""

    wire: ClassVar[str] = "PendingWelcome"

    group_id: UUID
    group_alias: str
    welcome_message: bytes = field(repr=False)
    welcome_id: UUID


@dataclass(frozen=True)
class Welcomes:
    """The user's welcomes."""

    wire: ClassVar[str] = "ListPendingWelcomesResponse"

    welcomes: tuple[Welcome, ...]


@dataclass(frozen=True)
class Admins:
    """The admins of a group."""

    wire: ClassVar[str] = "ListAdminsResponse"

    admins: tuple[Member, ...]


@dataclass(frozen=True)
class BannedUser:
    """A banned user. ``banned_by``: None once that account is gone."""

    wire: ClassVar[str] = "BannedUser"

    user_id: UUID
    username: str
    alias: str
    banned_at: int
    banned_by: UUID | None


@dataclass(frozen=True)
class BannedUsers:
    """Who is banned from a group."""

    wire: ClassVar[str] = "ListBannedUsersResponse"

    users: tuple[BannedUser, ...]


@dataclass(frozen=True)
class SessionInfo:
    """A session of the user's. ``current``: the one that asks."""

    wire: ClassVar[str] = "SessionInfo"

    id: UUID
    created_at: int
    last_used_at: int
    expires_at: int
    current: bool


@dataclass(frozen=True)
class Sessions:
    """The user's sessions."""

    wire: ClassVar[str] = "ListSessionsResponse"

    sessions: tuple[SessionInfo, ...]


@dataclass(frozen=True)
class RetentionConfiguration:
    """What the operator has set, in milliseconds, as MSC1763 has it."""

    wire: ClassVar[str] = "RetentionConfigurationResponse"

    policies: dict[str, dict[str, int]]
    limits: dict[str, dict[str, int]]


@dataclass(frozen=True)
class Refusal:
    """An error, as far as both formats tell of it."""

    wire: ClassVar[str] = "ErrorResponse"

    message: str
    error_code: int


@dataclass(frozen=True)
class Empty:
    """Nothing to tell."""

    wire: ClassVar[str] = "Empty"
