from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_INPUT_BAD_REQUEST: _ClassVar[ErrorCode]
    ERROR_CODE_INPUT_VALIDATION: _ClassVar[ErrorCode]
    ERROR_CODE_AUTH_HEADER_MISSING: _ClassVar[ErrorCode]
    ERROR_CODE_AUTH_HEADER_INVALID: _ClassVar[ErrorCode]
    ERROR_CODE_AUTH_TOKEN_EXPIRED: _ClassVar[ErrorCode]
    ERROR_CODE_AUTH_PASSWORD_WRONG: _ClassVar[ErrorCode]
    ERROR_CODE_RESOURCE_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_RESOURCE_CONFLICT: _ClassVar[ErrorCode]
    ERROR_CODE_RESOURCE_FORBIDDEN: _ClassVar[ErrorCode]
    ERROR_CODE_GROUP_NOT_MEMBER: _ClassVar[ErrorCode]
    ERROR_CODE_GROUP_NOT_ADMIN: _ClassVar[ErrorCode]
    ERROR_CODE_GROUP_NOT_PUBLIC: _ClassVar[ErrorCode]
    ERROR_CODE_GROUP_BANNED: _ClassVar[ErrorCode]

class GroupVisibility(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_VISIBILITY_UNSPECIFIED: _ClassVar[GroupVisibility]
    GROUP_VISIBILITY_PRIVATE: _ClassVar[GroupVisibility]
    GROUP_VISIBILITY_PUBLIC: _ClassVar[GroupVisibility]

class GroupRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_ROLE_UNSPECIFIED: _ClassVar[GroupRole]
    GROUP_ROLE_MEMBER: _ClassVar[GroupRole]
    GROUP_ROLE_ADMIN: _ClassVar[GroupRole]

class GroupUpdateType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_UPDATE_TYPE_UNSPECIFIED: _ClassVar[GroupUpdateType]
    GROUP_UPDATE_TYPE_COMMIT: _ClassVar[GroupUpdateType]
    GROUP_UPDATE_TYPE_GROUP_SETTINGS: _ClassVar[GroupUpdateType]
    GROUP_UPDATE_TYPE_ROLE_CHANGE: _ClassVar[GroupUpdateType]
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_INPUT_BAD_REQUEST: ErrorCode
ERROR_CODE_INPUT_VALIDATION: ErrorCode
ERROR_CODE_AUTH_HEADER_MISSING: ErrorCode
ERROR_CODE_AUTH_HEADER_INVALID: ErrorCode
ERROR_CODE_AUTH_TOKEN_EXPIRED: ErrorCode
ERROR_CODE_AUTH_PASSWORD_WRONG: ErrorCode
ERROR_CODE_RESOURCE_NOT_FOUND: ErrorCode
ERROR_CODE_RESOURCE_CONFLICT: ErrorCode
ERROR_CODE_RESOURCE_FORBIDDEN: ErrorCode
ERROR_CODE_GROUP_NOT_MEMBER: ErrorCode
ERROR_CODE_GROUP_NOT_ADMIN: ErrorCode
ERROR_CODE_GROUP_NOT_PUBLIC: ErrorCode
ERROR_CODE_GROUP_BANNED: ErrorCode
GROUP_VISIBILITY_UNSPECIFIED: GroupVisibility
GROUP_VISIBILITY_PRIVATE: GroupVisibility
GROUP_VISIBILITY_PUBLIC: GroupVisibility
GROUP_ROLE_UNSPECIFIED: GroupRole
GROUP_ROLE_MEMBER: GroupRole
GROUP_ROLE_ADMIN: GroupRole
GROUP_UPDATE_TYPE_UNSPECIFIED: GroupUpdateType
GROUP_UPDATE_TYPE_COMMIT: GroupUpdateType
GROUP_UPDATE_TYPE_GROUP_SETTINGS: GroupUpdateType
GROUP_UPDATE_TYPE_ROLE_CHANGE: GroupUpdateType

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ErrorResponse(_message.Message):
    __slots__ = ("message", "error_code")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    message: str
    error_code: ErrorCode
    def __init__(self, message: _Optional[str] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("username", "password", "alias", "registration_token")
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    username: str
    password: str
    alias: str
    registration_token: str
    def __init__(self, username: _Optional[str] = ..., password: _Optional[str] = ..., alias: _Optional[str] = ..., registration_token: _Optional[str] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("user_id",)
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    user_id: bytes
    def __init__(self, user_id: _Optional[bytes] = ...) -> None: ...

class LoginRequest(_message.Message):
    __slots__ = ("username", "password")
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    username: str
    password: str
    def __init__(self, username: _Optional[str] = ..., password: _Optional[str] = ...) -> None: ...

class LoginResponse(_message.Message):
    __slots__ = ("token", "user_id", "username")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    token: str
    user_id: bytes
    username: str
    def __init__(self, token: _Optional[str] = ..., user_id: _Optional[bytes] = ..., username: _Optional[str] = ...) -> None: ...

class UserInfoResponse(_message.Message):
    __slots__ = ("user_id", "username", "alias", "signing_key_fingerprint")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    SIGNING_KEY_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    user_id: bytes
    username: str
    alias: str
    signing_key_fingerprint: str
    def __init__(self, user_id: _Optional[bytes] = ..., username: _Optional[str] = ..., alias: _Optional[str] = ..., signing_key_fingerprint: _Optional[str] = ...) -> None: ...

class UpdateProfileRequest(_message.Message):
    __slots__ = ("alias",)
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    alias: str
    def __init__(self, alias: _Optional[str] = ...) -> None: ...

class ChangePasswordRequest(_message.Message):
    __slots__ = ("current_password", "new_password")
    CURRENT_PASSWORD_FIELD_NUMBER: _ClassVar[int]
    NEW_PASSWORD_FIELD_NUMBER: _ClassVar[int]
    current_password: str
    new_password: str
    def __init__(self, current_password: _Optional[str] = ..., new_password: _Optional[str] = ...) -> None: ...

class DeleteAccountRequest(_message.Message):
    __slots__ = ("password",)
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    password: str
    def __init__(self, password: _Optional[str] = ...) -> None: ...

class UploadKeyPackageRequest(_message.Message):
    __slots__ = ("key_package_data", "entries", "signing_key_fingerprint")
    KEY_PACKAGE_DATA_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SIGNING_KEY_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    key_package_data: bytes
    entries: _containers.RepeatedCompositeFieldContainer[KeyPackageEntry]
    signing_key_fingerprint: str
    def __init__(self, key_package_data: _Optional[bytes] = ..., entries: _Optional[_Iterable[_Union[KeyPackageEntry, _Mapping]]] = ..., signing_key_fingerprint: _Optional[str] = ...) -> None: ...

class KeyPackageEntry(_message.Message):
    __slots__ = ("data", "is_last_resort")
    DATA_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_RESORT_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    is_last_resort: bool
    def __init__(self, data: _Optional[bytes] = ..., is_last_resort: _Optional[bool] = ...) -> None: ...

class GetKeyPackageResponse(_message.Message):
    __slots__ = ("key_package_data",)
    KEY_PACKAGE_DATA_FIELD_NUMBER: _ClassVar[int]
    key_package_data: bytes
    def __init__(self, key_package_data: _Optional[bytes] = ...) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("alias", "group_name")
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    GROUP_NAME_FIELD_NUMBER: _ClassVar[int]
    alias: str
    group_name: str
    def __init__(self, alias: _Optional[str] = ..., group_name: _Optional[str] = ...) -> None: ...

class CreateGroupResponse(_message.Message):
    __slots__ = ("group_id",)
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    def __init__(self, group_id: _Optional[bytes] = ...) -> None: ...

class GroupInfo(_message.Message):
    __slots__ = ("group_id", "alias", "members", "group_name", "mls_group_id", "message_expiry_seconds", "visibility")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    GROUP_NAME_FIELD_NUMBER: _ClassVar[int]
    MLS_GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_EXPIRY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    alias: str
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    group_name: str
    mls_group_id: str
    message_expiry_seconds: int
    visibility: GroupVisibility
    def __init__(self, group_id: _Optional[bytes] = ..., alias: _Optional[str] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., group_name: _Optional[str] = ..., mls_group_id: _Optional[str] = ..., message_expiry_seconds: _Optional[int] = ..., visibility: _Optional[_Union[GroupVisibility, str]] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("user_id", "username", "alias", "role", "signing_key_fingerprint")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SIGNING_KEY_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    user_id: bytes
    username: str
    alias: str
    role: GroupRole
    signing_key_fingerprint: str
    def __init__(self, user_id: _Optional[bytes] = ..., username: _Optional[str] = ..., alias: _Optional[str] = ..., role: _Optional[_Union[GroupRole, str]] = ..., signing_key_fingerprint: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups", "more")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupInfo]
    more: bool
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupInfo, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class PublicGroupInfo(_message.Message):
    __slots__ = ("group_id", "group_name", "alias", "member_count")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_NAME_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_COUNT_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    group_name: str
    alias: str
    member_count: int
    def __init__(self, group_id: _Optional[bytes] = ..., group_name: _Optional[str] = ..., alias: _Optional[str] = ..., member_count: _Optional[int] = ...) -> None: ...

class ListPublicGroupsResponse(_message.Message):
    __slots__ = ("groups", "more")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[PublicGroupInfo]
    more: bool
    def __init__(self, groups: _Optional[_Iterable[_Union[PublicGroupInfo, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class UpdateGroupRequest(_message.Message):
    __slots__ = ("alias", "group_name", "message_expiry_seconds", "update_message_expiry", "visibility", "min_lifetime_seconds", "update_min_lifetime", "dry_run")
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    GROUP_NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_EXPIRY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MESSAGE_EXPIRY_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_FIELD_NUMBER: _ClassVar[int]
    MIN_LIFETIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MIN_LIFETIME_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    alias: str
    group_name: str
    message_expiry_seconds: int
    update_message_expiry: bool
    visibility: GroupVisibility
    min_lifetime_seconds: int
    update_min_lifetime: bool
    dry_run: bool
    def __init__(self, alias: _Optional[str] = ..., group_name: _Optional[str] = ..., message_expiry_seconds: _Optional[int] = ..., update_message_expiry: _Optional[bool] = ..., visibility: _Optional[_Union[GroupVisibility, str]] = ..., min_lifetime_seconds: _Optional[int] = ..., update_min_lifetime: _Optional[bool] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class UpdateGroupResponse(_message.Message):
    __slots__ = ("messages_expiring", "oldest_expiring")
    MESSAGES_EXPIRING_FIELD_NUMBER: _ClassVar[int]
    OLDEST_EXPIRING_FIELD_NUMBER: _ClassVar[int]
    messages_expiring: int
    oldest_expiring: int
    def __init__(self, messages_expiring: _Optional[int] = ..., oldest_expiring: _Optional[int] = ...) -> None: ...

class GetRetentionPolicyResponse(_message.Message):
    __slots__ = ("server_retention_seconds", "group_expiry_seconds", "effective_expiry_seconds", "min_lifetime_seconds", "policy_source", "legal_hold", "held_by", "hidden_before", "taken_back", "expiry_set_by", "more", "last_sequence_num")
    SERVER_RETENTION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    GROUP_EXPIRY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_EXPIRY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MIN_LIFETIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    POLICY_SOURCE_FIELD_NUMBER: _ClassVar[int]
    LEGAL_HOLD_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_BEFORE_FIELD_NUMBER: _ClassVar[int]
    TAKEN_BACK_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_SET_BY_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_NUM_FIELD_NUMBER: _ClassVar[int]
    server_retention_seconds: int
    group_expiry_seconds: int
    effective_expiry_seconds: int
    min_lifetime_seconds: int
    policy_source: str
    legal_hold: bool
    held_by: _containers.RepeatedScalarFieldContainer[bytes]
    hidden_before: int
    taken_back: _containers.RepeatedScalarFieldContainer[int]
    expiry_set_by: bytes
    more: bool
    last_sequence_num: int
    def __init__(self, server_retention_seconds: _Optional[int] = ..., group_expiry_seconds: _Optional[int] = ..., effective_expiry_seconds: _Optional[int] = ..., min_lifetime_seconds: _Optional[int] = ..., policy_source: _Optional[str] = ..., legal_hold: _Optional[bool] = ..., held_by: _Optional[_Iterable[bytes]] = ..., hidden_before: _Optional[int] = ..., taken_back: _Optional[_Iterable[int]] = ..., expiry_set_by: _Optional[bytes] = ..., more: _Optional[bool] = ..., last_sequence_num: _Optional[int] = ...) -> None: ...

class GetGroupInfoResponse(_message.Message):
    __slots__ = ("group_info",)
    GROUP_INFO_FIELD_NUMBER: _ClassVar[int]
    group_info: bytes
    def __init__(self, group_info: _Optional[bytes] = ...) -> None: ...

class UploadCommitRequest(_message.Message):
    __slots__ = ("commit_message", "group_info", "mls_group_id")
    COMMIT_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GROUP_INFO_FIELD_NUMBER: _ClassVar[int]
    MLS_GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    commit_message: bytes
    group_info: bytes
    mls_group_id: str
    def __init__(self, commit_message: _Optional[bytes] = ..., group_info: _Optional[bytes] = ..., mls_group_id: _Optional[str] = ...) -> None: ...

class ExternalJoinRequest(_message.Message):
    __slots__ = ("commit_message", "mls_group_id", "group_info")
    COMMIT_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MLS_GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INFO_FIELD_NUMBER: _ClassVar[int]
    commit_message: bytes
    mls_group_id: str
    group_info: bytes
    def __init__(self, commit_message: _Optional[bytes] = ..., mls_group_id: _Optional[str] = ..., group_info: _Optional[bytes] = ...) -> None: ...

class SendMessageRequest(_message.Message):
    __slots__ = ("mls_message", "self_destruct_seconds", "send_id")
    MLS_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SELF_DESTRUCT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEND_ID_FIELD_NUMBER: _ClassVar[int]
    mls_message: bytes
    self_destruct_seconds: int
    send_id: bytes
    def __init__(self, mls_message: _Optional[bytes] = ..., self_destruct_seconds: _Optional[int] = ..., send_id: _Optional[bytes] = ...) -> None: ...

class SendMessageResponse(_message.Message):
    __slots__ = ("sequence_num",)
    SEQUENCE_NUM_FIELD_NUMBER: _ClassVar[int]
    sequence_num: int
    def __init__(self, sequence_num: _Optional[int] = ...) -> None: ...

class StoredMessage(_message.Message):
    __slots__ = ("sequence_num", "sender_id", "mls_message", "created_at", "self_destruct_seconds", "redacted", "expires_at")
    SEQUENCE_NUM_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    MLS_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    SELF_DESTRUCT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REDACTED_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    sequence_num: int
    sender_id: bytes
    mls_message: bytes
    created_at: int
    self_destruct_seconds: int
    redacted: bool
    expires_at: int
    def __init__(self, sequence_num: _Optional[int] = ..., sender_id: _Optional[bytes] = ..., mls_message: _Optional[bytes] = ..., created_at: _Optional[int] = ..., self_destruct_seconds: _Optional[int] = ..., redacted: _Optional[bool] = ..., expires_at: _Optional[int] = ...) -> None: ...

class ReadReceiptRequest(_message.Message):
    __slots__ = ("sequence_num",)
    SEQUENCE_NUM_FIELD_NUMBER: _ClassVar[int]
    sequence_num: int
    def __init__(self, sequence_num: _Optional[int] = ...) -> None: ...

class GetMessagesResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[StoredMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[StoredMessage, _Mapping]]] = ...) -> None: ...

class InviteToGroupRequest(_message.Message):
    __slots__ = ("user_ids",)
    USER_IDS_FIELD_NUMBER: _ClassVar[int]
    user_ids: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, user_ids: _Optional[_Iterable[bytes]] = ...) -> None: ...

class MemberKeyPackage(_message.Message):
    __slots__ = ("user_id", "key_package_data")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_PACKAGE_DATA_FIELD_NUMBER: _ClassVar[int]
    user_id: bytes
    key_package_data: bytes
    def __init__(self, user_id: _Optional[bytes] = ..., key_package_data: _Optional[bytes] = ...) -> None: ...

class InviteToGroupResponse(_message.Message):
    __slots__ = ("member_key_packages",)
    MEMBER_KEY_PACKAGES_FIELD_NUMBER: _ClassVar[int]
    member_key_packages: _containers.RepeatedCompositeFieldContainer[MemberKeyPackage]
    def __init__(self, member_key_packages: _Optional[_Iterable[_Union[MemberKeyPackage, _Mapping]]] = ...) -> None: ...

class EscrowInviteRequest(_message.Message):
    __slots__ = ("invitee_id", "commit_message", "welcome_message", "group_info")
    INVITEE_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    WELCOME_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GROUP_INFO_FIELD_NUMBER: _ClassVar[int]
    invitee_id: bytes
    commit_message: bytes
    welcome_message: bytes
    group_info: bytes
    def __init__(self, invitee_id: _Optional[bytes] = ..., commit_message: _Optional[bytes] = ..., welcome_message: _Optional[bytes] = ..., group_info: _Optional[bytes] = ...) -> None: ...

class PendingInvite(_message.Message):
    __slots__ = ("invite_id", "group_id", "group_name", "group_alias", "inviter_username", "created_at", "invitee_id", "inviter_id")
    INVITE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_NAME_FIELD_NUMBER: _ClassVar[int]
    GROUP_ALIAS_FIELD_NUMBER: _ClassVar[int]
    INVITER_USERNAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    INVITEE_ID_FIELD_NUMBER: _ClassVar[int]
    INVITER_ID_FIELD_NUMBER: _ClassVar[int]
    invite_id: bytes
    group_id: bytes
    group_name: str
    group_alias: str
    inviter_username: str
    created_at: int
    invitee_id: bytes
    inviter_id: bytes
    def __init__(self, invite_id: _Optional[bytes] = ..., group_id: _Optional[bytes] = ..., group_name: _Optional[str] = ..., group_alias: _Optional[str] = ..., inviter_username: _Optional[str] = ..., created_at: _Optional[int] = ..., invitee_id: _Optional[bytes] = ..., inviter_id: _Optional[bytes] = ...) -> None: ...

class ListPendingInvitesResponse(_message.Message):
    __slots__ = ("invites", "more")
    INVITES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    invites: _containers.RepeatedCompositeFieldContainer[PendingInvite]
    more: bool
    def __init__(self, invites: _Optional[_Iterable[_Union[PendingInvite, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class ListGroupPendingInvitesResponse(_message.Message):
    __slots__ = ("invites", "more")
    INVITES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    invites: _containers.RepeatedCompositeFieldContainer[PendingInvite]
    more: bool
    def __init__(self, invites: _Optional[_Iterable[_Union[PendingInvite, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class CancelInviteRequest(_message.Message):
    __slots__ = ("invitee_id",)
    INVITEE_ID_FIELD_NUMBER: _ClassVar[int]
    invitee_id: bytes
    def __init__(self, invitee_id: _Optional[bytes] = ...) -> None: ...

class PendingWelcome(_message.Message):
    __slots__ = ("group_id", "group_alias", "welcome_message", "welcome_id")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ALIAS_FIELD_NUMBER: _ClassVar[int]
    WELCOME_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    WELCOME_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    group_alias: str
    welcome_message: bytes
    welcome_id: bytes
    def __init__(self, group_id: _Optional[bytes] = ..., group_alias: _Optional[str] = ..., welcome_message: _Optional[bytes] = ..., welcome_id: _Optional[bytes] = ...) -> None: ...

class ListPendingWelcomesResponse(_message.Message):
    __slots__ = ("welcomes", "more")
    WELCOMES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    welcomes: _containers.RepeatedCompositeFieldContainer[PendingWelcome]
    more: bool
    def __init__(self, welcomes: _Optional[_Iterable[_Union[PendingWelcome, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class PromoteMemberRequest(_message.Message):
    __slots__ = ("user_id",)
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    user_id: bytes
    def __init__(self, user_id: _Optional[bytes] = ...) -> None: ...

class DemoteMemberRequest(_message.Message):
    __slots__ = ("user_id",)
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    user_id: bytes
    def __init__(self, user_id: _Optional[bytes] = ...) -> None: ...

class ListAdminsResponse(_message.Message):
    __slots__ = ("admins", "more")
    ADMINS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    admins: _containers.RepeatedCompositeFieldContainer[GroupMember]
    more: bool
    def __init__(self, admins: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class RemoveMemberRequest(_message.Message):
    __slots__ = ("user_id", "commit_message", "group_info")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GROUP_INFO_FIELD_NUMBER: _ClassVar[int]
    user_id: bytes
    commit_message: bytes
    group_info: bytes
    def __init__(self, user_id: _Optional[bytes] = ..., commit_message: _Optional[bytes] = ..., group_info: _Optional[bytes] = ...) -> None: ...

class LeaveGroupRequest(_message.Message):
    __slots__ = ("commit_message", "group_info")
    COMMIT_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GROUP_INFO_FIELD_NUMBER: _ClassVar[int]
    commit_message: bytes
    group_info: bytes
    def __init__(self, commit_message: _Optional[bytes] = ..., group_info: _Optional[bytes] = ...) -> None: ...

class BanMemberRequest(_message.Message):
    __slots__ = ("user_id", "commit_message", "group_info")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GROUP_INFO_FIELD_NUMBER: _ClassVar[int]
    user_id: bytes
    commit_message: bytes
    group_info: bytes
    def __init__(self, user_id: _Optional[bytes] = ..., commit_message: _Optional[bytes] = ..., group_info: _Optional[bytes] = ...) -> None: ...

class UnbanMemberRequest(_message.Message):
    __slots__ = ("user_id",)
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    user_id: bytes
    def __init__(self, user_id: _Optional[bytes] = ...) -> None: ...

class BannedUser(_message.Message):
    __slots__ = ("user_id", "username", "alias", "banned_at", "banned_by")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    BANNED_AT_FIELD_NUMBER: _ClassVar[int]
    BANNED_BY_FIELD_NUMBER: _ClassVar[int]
    user_id: bytes
    username: str
    alias: str
    banned_at: int
    banned_by: bytes
    def __init__(self, user_id: _Optional[bytes] = ..., username: _Optional[str] = ..., alias: _Optional[str] = ..., banned_at: _Optional[int] = ..., banned_by: _Optional[bytes] = ...) -> None: ...

class ListBannedUsersResponse(_message.Message):
    __slots__ = ("users", "more")
    USERS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[BannedUser]
    more: bool
    def __init__(self, users: _Optional[_Iterable[_Union[BannedUser, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class ServerEvent(_message.Message):
    __slots__ = ("new_message", "group_update", "welcome", "member_removed", "identity_reset", "invite_received", "invite_declined", "invite_cancelled", "group_deleted", "message_redacted")
    NEW_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GROUP_UPDATE_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    MEMBER_REMOVED_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_RESET_FIELD_NUMBER: _ClassVar[int]
    INVITE_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    INVITE_DECLINED_FIELD_NUMBER: _ClassVar[int]
    INVITE_CANCELLED_FIELD_NUMBER: _ClassVar[int]
    GROUP_DELETED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_REDACTED_FIELD_NUMBER: _ClassVar[int]
    new_message: NewMessageEvent
    group_update: GroupUpdateEvent
    welcome: WelcomeEvent
    member_removed: MemberRemovedEvent
    identity_reset: IdentityResetEvent
    invite_received: InviteReceivedEvent
    invite_declined: InviteDeclinedEvent
    invite_cancelled: InviteCancelledEvent
    group_deleted: GroupDeletedEvent
    message_redacted: MessageRedactedEvent
    def __init__(self, new_message: _Optional[_Union[NewMessageEvent, _Mapping]] = ..., group_update: _Optional[_Union[GroupUpdateEvent, _Mapping]] = ..., welcome: _Optional[_Union[WelcomeEvent, _Mapping]] = ..., member_removed: _Optional[_Union[MemberRemovedEvent, _Mapping]] = ..., identity_reset: _Optional[_Union[IdentityResetEvent, _Mapping]] = ..., invite_received: _Optional[_Union[InviteReceivedEvent, _Mapping]] = ..., invite_declined: _Optional[_Union[InviteDeclinedEvent, _Mapping]] = ..., invite_cancelled: _Optional[_Union[InviteCancelledEvent, _Mapping]] = ..., group_deleted: _Optional[_Union[GroupDeletedEvent, _Mapping]] = ..., message_redacted: _Optional[_Union[MessageRedactedEvent, _Mapping]] = ...) -> None: ...

class NewMessageEvent(_message.Message):
    __slots__ = ("group_id", "sequence_num", "sender_id")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUM_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    sequence_num: int
    sender_id: bytes
    def __init__(self, group_id: _Optional[bytes] = ..., sequence_num: _Optional[int] = ..., sender_id: _Optional[bytes] = ...) -> None: ...

class GroupUpdateEvent(_message.Message):
    __slots__ = ("group_id", "update_type")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TYPE_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    update_type: GroupUpdateType
    def __init__(self, group_id: _Optional[bytes] = ..., update_type: _Optional[_Union[GroupUpdateType, str]] = ...) -> None: ...

class WelcomeEvent(_message.Message):
    __slots__ = ("group_id", "group_alias")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ALIAS_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    group_alias: str
    def __init__(self, group_id: _Optional[bytes] = ..., group_alias: _Optional[str] = ...) -> None: ...

class MemberRemovedEvent(_message.Message):
    __slots__ = ("group_id", "removed_user_id")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    REMOVED_USER_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    removed_user_id: bytes
    def __init__(self, group_id: _Optional[bytes] = ..., removed_user_id: _Optional[bytes] = ...) -> None: ...

class IdentityResetEvent(_message.Message):
    __slots__ = ("group_id", "user_id")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    user_id: bytes
    def __init__(self, group_id: _Optional[bytes] = ..., user_id: _Optional[bytes] = ...) -> None: ...

class InviteReceivedEvent(_message.Message):
    __slots__ = ("invite_id", "group_id", "group_name", "group_alias", "inviter_id")
    INVITE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_NAME_FIELD_NUMBER: _ClassVar[int]
    GROUP_ALIAS_FIELD_NUMBER: _ClassVar[int]
    INVITER_ID_FIELD_NUMBER: _ClassVar[int]
    invite_id: bytes
    group_id: bytes
    group_name: str
    group_alias: str
    inviter_id: bytes
    def __init__(self, invite_id: _Optional[bytes] = ..., group_id: _Optional[bytes] = ..., group_name: _Optional[str] = ..., group_alias: _Optional[str] = ..., inviter_id: _Optional[bytes] = ...) -> None: ...

class InviteDeclinedEvent(_message.Message):
    __slots__ = ("group_id", "declined_user_id")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    DECLINED_USER_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    declined_user_id: bytes
    def __init__(self, group_id: _Optional[bytes] = ..., declined_user_id: _Optional[bytes] = ...) -> None: ...

class InviteCancelledEvent(_message.Message):
    __slots__ = ("group_id",)
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    def __init__(self, group_id: _Optional[bytes] = ...) -> None: ...

class GroupDeletedEvent(_message.Message):
    __slots__ = ("group_id",)
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    def __init__(self, group_id: _Optional[bytes] = ...) -> None: ...

class MessageRedactedEvent(_message.Message):
    __slots__ = ("group_id", "sequence_num")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUM_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    sequence_num: int
    def __init__(self, group_id: _Optional[bytes] = ..., sequence_num: _Optional[int] = ...) -> None: ...
