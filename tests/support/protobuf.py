"""A client that speaks protobuf as existing clients do, and its own way between messages and JSON's values.

Written from the protocol, not from the server's mapping, so that comparing the two means something.
"""

import base64
import re
from typing import Any
from uuid import UUID

from google.protobuf.descriptor import FieldDescriptor

from conclave.wire import conclave_pb2
from tests.support.client import API, Client, RefusedError

PROTOBUF = {"Content-Type": "application/x-protobuf"}

PREFIXES = {
    "GroupVisibility": "GROUP_VISIBILITY_",
    "GroupRole": "GROUP_ROLE_",
    "GroupUpdateType": "GROUP_UPDATE_TYPE_",
}

MESSAGES = {
    "GET /openapi.json": (None, None),
    "GET /docs": (None, None),
    "POST /register": ("RegisterRequest", "RegisterResponse"),
    "POST /login": ("LoginRequest", "LoginResponse"),
    "POST /logout": (None, None),
    "GET /me": (None, "UserInfoResponse"),
    "PATCH /me": ("UpdateProfileRequest", "Empty"),
    "POST /change-password": ("ChangePasswordRequest", "Empty"),
    "POST /reset-account": (None, "Empty"),
    "POST /delete-account": ("DeleteAccountRequest", "Empty"),
    "GET /users/{username}": (None, "UserInfoResponse"),
    "GET /users/by-id/{user_id}": (None, "UserInfoResponse"),
    "POST /key-packages": ("UploadKeyPackageRequest", "Empty"),
    "GET /key-packages/{user_id}": (None, "GetKeyPackageResponse"),
    "POST /groups": ("CreateGroupRequest", "CreateGroupResponse"),
    "GET /groups": (None, "ListGroupsResponse"),
    "GET /groups/public": (None, "ListPublicGroupsResponse"),
    "PATCH /groups/{group_id}": ("UpdateGroupRequest", "UpdateGroupResponse"),
    "POST /groups/{group_id}/delete": (None, "Empty"),
    "GET /groups/{group_id}/group-info": (None, "GetGroupInfoResponse"),
    "GET /groups/{group_id}/retention": (None, "GetRetentionPolicyResponse"),
    "POST /groups/{group_id}/join": (None, "GetGroupInfoResponse"),
    "POST /groups/{group_id}/invite": ("InviteToGroupRequest", "InviteToGroupResponse"),
    "POST /groups/{group_id}/escrow-invite": ("EscrowInviteRequest", "Empty"),
    "GET /groups/{group_id}/invites": (None, "ListGroupPendingInvitesResponse"),
    "POST /groups/{group_id}/cancel-invite": ("CancelInviteRequest", "Empty"),
    "GET /invites": (None, "ListPendingInvitesResponse"),
    "POST /invites/{invite_id}/accept": (None, "Empty"),
    "POST /invites/{invite_id}/decline": (None, "Empty"),
    "GET /welcomes": (None, "ListPendingWelcomesResponse"),
    "POST /welcomes/{welcome_id}/accept": (None, None),
    "POST /groups/{group_id}/commit": ("UploadCommitRequest", "Empty"),
    "POST /groups/{group_id}/messages": ("SendMessageRequest", "SendMessageResponse"),
    "GET /groups/{group_id}/messages": (None, "GetMessagesResponse"),
    "DELETE /groups/{group_id}/messages/{sequence_num}": (None, "Empty"),
    "POST /groups/{group_id}/read": ("ReadReceiptRequest", "Empty"),
    "POST /groups/{group_id}/remove": ("RemoveMemberRequest", "Empty"),
    "POST /groups/{group_id}/leave": ("LeaveGroupRequest", "Empty"),
    "POST /groups/{group_id}/promote": ("PromoteMemberRequest", "Empty"),
    "POST /groups/{group_id}/demote": ("DemoteMemberRequest", "Empty"),
    "GET /groups/{group_id}/admins": (None, "ListAdminsResponse"),
    "POST /groups/{group_id}/ban": ("BanMemberRequest", "Empty"),
    "POST /groups/{group_id}/unban": ("UnbanMemberRequest", "Empty"),
    "GET /groups/{group_id}/banned": (None, "ListBannedUsersResponse"),
    "POST /groups/{group_id}/external-join": ("ExternalJoinRequest", "Empty"),
    "GET /retention/configuration": (None, None),
    "GET /sessions": (None, None),
    "DELETE /sessions/{id}": (None, None),
    "GET /events": (None, None),
}
"""Of each endpoint the messages of its request and of its response."""


def messages_of(method: str, path: str) -> tuple[str | None, str | None]:
    """Find the messages of an endpoint by a path with values in it."""
    for endpoint, messages in MESSAGES.items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", endpoint), f"{method} {path}"):
            return messages
    raise KeyError(f"{method} {path}")


def encode(name: str, values: dict[str, Any]) -> bytes:
    """Write what JSON would say as a protobuf message."""
    body: bytes = _message(name, values).SerializeToString()
    return body


def decode(name: str, body: bytes) -> dict[str, Any]:
    """Return what JSON would say for a protobuf message."""
    return _values(getattr(conclave_pb2, name).FromString(body))


def _message(name: str, values: dict[str, Any]) -> Any:
    kind = getattr(conclave_pb2, name)
    fields = kind.DESCRIPTOR.fields_by_name
    return kind(**{field: _each(fields[field], value, _to_protobuf) for field, value in values.items()})


def _values(message: Any) -> dict[str, Any]:
    fields = [field for field in message.DESCRIPTOR.fields if not field.has_presence or message.HasField(field.name)]
    return {field.name: _each(field, getattr(message, field.name), _from_protobuf) for field in fields}


def _each(field: Any, value: Any, convert: Any) -> Any:
    return [convert(field, each) for each in value] if field.is_repeated else convert(field, value)


def _to_protobuf(field: Any, value: Any) -> Any:
    if field.message_type:
        return _message(field.message_type.name, value)
    if field.enum_type and isinstance(value, str):
        return PREFIXES[field.enum_type.name] + value.upper()
    if field.type == FieldDescriptor.TYPE_BYTES:
        return UUID(value).bytes if is_id(field.name) else base64.b64decode(value)
    return value


def _from_protobuf(field: Any, value: Any) -> Any:
    if field.message_type:
        return _values(value)
    if field.enum_type and field.enum_type.name != "ErrorCode":
        return field.enum_type.values_by_number[value].name.removeprefix(PREFIXES[field.enum_type.name]).lower()
    if field.type == FieldDescriptor.TYPE_BYTES:
        return str(UUID(bytes=value)) if value and is_id(field.name) else base64.b64encode(value).decode()
    return value


def is_id(name: str) -> bool:
    return name.endswith(("_id", "_ids")) or name in ("banned_by", "held_by", "expiry_set_by")


def varint(number: int) -> bytes:
    """Write a number as protobuf does: seven bits a byte, the lowest first, all but the last marked."""
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


class ProtobufClient(Client):
    """One user's session in protobuf: takes and gives what Client does."""

    async def call(self, method: str, path: str, *, json: Any = None, **query: Any) -> dict[str, Any]:
        asked, answered = messages_of(method, path)
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        if asked and json is not None:
            headers |= PROTOBUF
        async with self.http.request(
            method,
            self.url + API + path,
            data=encode(asked, json) if asked and json is not None else None,
            params=query or None,
            headers=headers,
            skip_auto_headers=["Content-Type"],
        ) as response:
            body = await response.read()
            if response.status == 204:
                return {}
            assert response.content_type == PROTOBUF["Content-Type"]
            if response.status >= 400:
                raise RefusedError(response.status, decode("ErrorResponse", body), response.headers)
            return decode(answered or "Empty", body)
