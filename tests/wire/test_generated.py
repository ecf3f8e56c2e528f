"""proto/conclave.proto is the contract's tables, and the generated code is that file's."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor

from conclave.errors import ErrorCode
from conclave.wire import conclave_pb2

ROOT = Path(__file__).resolve().parents[2]

CONTRACT = """
RegisterRequest             username=1 string, password=2 string, alias=3 string, registration_token=4 string
RegisterResponse            user_id=1 bytes
LoginRequest                username=1 string, password=2 string
LoginResponse               token=1 string, user_id=2 bytes, username=3 string
UserInfoResponse            user_id=1 bytes, username=2 string, alias=3 string, signing_key_fingerprint=4 string
UpdateProfileRequest        alias=1 string
ChangePasswordRequest       current_password=1 string, new_password=2 string
DeleteAccountRequest        password=1 string
UploadKeyPackageRequest     key_package_data=1 bytes, entries=2 KeyPackageEntry[], signing_key_fingerprint=3 string
KeyPackageEntry             data=1 bytes, is_last_resort=2 bool
GetKeyPackageResponse       key_package_data=1 bytes
CreateGroupRequest          alias=1 string, group_name=2 string
CreateGroupResponse         group_id=1 bytes
GroupInfo                   group_id=1 bytes, alias=2 string, members=3 GroupMember[], group_name=4 string, \
mls_group_id=5 string, message_expiry_seconds=6 int64, visibility=7 GroupVisibility
GroupMember                 user_id=1 bytes, username=2 string, alias=3 string, role=4 GroupRole, \
signing_key_fingerprint=5 string
ListGroupsResponse          groups=1 GroupInfo[], more=100 bool
PublicGroupInfo             group_id=1 bytes, group_name=2 string, alias=3 string, member_count=4 uint32
ListPublicGroupsResponse    groups=1 PublicGroupInfo[], more=100 bool
UpdateGroupRequest          alias=1 string, group_name=2 string, message_expiry_seconds=3 int64, \
update_message_expiry=4 bool, visibility=5 GroupVisibility, min_lifetime_seconds=100 int64, \
update_min_lifetime=101 bool, dry_run=102 bool
UpdateGroupResponse         messages_expiring=100 uint64, oldest_expiring=101 uint64
GetRetentionPolicyResponse  server_retention_seconds=1 int64, group_expiry_seconds=2 int64, \
effective_expiry_seconds=100 int64, min_lifetime_seconds=101 int64, policy_source=102 string, legal_hold=103 bool, \
held_by=104 bytes[], hidden_before=105 uint64, taken_back=106 uint64[], \
expiry_set_by=107 bytes, more=108 bool, last_sequence_num=109 uint64
GetGroupInfoResponse        group_info=1 bytes
UploadCommitRequest         commit_message=1 bytes, group_info=2 bytes, mls_group_id=3 string
SendMessageRequest          mls_message=1 bytes, self_destruct_seconds=100 uint32, send_id=101 bytes
SendMessageResponse         sequence_num=1 uint64
StoredMessage               sequence_num=1 uint64, sender_id=2 bytes, mls_message=3 bytes, created_at=4 uint64, \
self_destruct_seconds=100 uint32, redacted=101 bool, expires_at=102 uint64
ReadReceiptRequest          sequence_num=1 uint64
GetMessagesResponse         messages=1 StoredMessage[]
InviteToGroupRequest        user_ids=1 bytes[]
MemberKeyPackage            user_id=1 bytes, key_package_data=2 bytes
InviteToGroupResponse       member_key_packages=1 MemberKeyPackage[]
EscrowInviteRequest         invitee_id=1 bytes, commit_message=2 bytes, welcome_message=3 bytes, group_info=4 bytes
PendingInvite               invite_id=1 bytes, group_id=2 bytes, group_name=3 string, group_alias=4 string, \
inviter_username=5 string, created_at=6 uint64, invitee_id=7 bytes, inviter_id=8 bytes
ListPendingInvitesResponse  invites=1 PendingInvite[], more=100 bool
ListGroupPendingInvitesResponse  invites=1 PendingInvite[], more=100 bool
CancelInviteRequest         invitee_id=1 bytes
PendingWelcome              group_id=1 bytes, group_alias=2 string, welcome_message=3 bytes, welcome_id=4 bytes
ListPendingWelcomesResponse welcomes=1 PendingWelcome[], more=100 bool
PromoteMemberRequest        user_id=1 bytes
DemoteMemberRequest         user_id=1 bytes
UnbanMemberRequest          user_id=1 bytes
ListAdminsResponse          admins=1 GroupMember[], more=100 bool
RemoveMemberRequest         user_id=1 bytes, commit_message=2 bytes, group_info=3 bytes
BanMemberRequest            user_id=1 bytes, commit_message=2 bytes, group_info=3 bytes
LeaveGroupRequest           commit_message=1 bytes, group_info=2 bytes
BannedUser                  user_id=1 bytes, username=2 string, alias=3 string, banned_at=4 uint64, banned_by=5 bytes
ListBannedUsersResponse     users=1 BannedUser[], more=100 bool
ExternalJoinRequest         commit_message=1 bytes, mls_group_id=2 string, group_info=100 bytes
ErrorResponse               message=1 string, error_code=2 ErrorCode
ServerEvent                 new_message=1 NewMessageEvent, group_update=2 GroupUpdateEvent, welcome=3 WelcomeEvent, \
member_removed=4 MemberRemovedEvent, identity_reset=5 IdentityResetEvent, invite_received=6 InviteReceivedEvent, \
invite_declined=7 InviteDeclinedEvent, invite_cancelled=8 InviteCancelledEvent, group_deleted=9 GroupDeletedEvent, \
message_redacted=100 MessageRedactedEvent
NewMessageEvent             group_id=1 bytes, sequence_num=2 uint64, sender_id=3 bytes
GroupUpdateEvent            group_id=1 bytes, update_type=2 GroupUpdateType
WelcomeEvent                group_id=1 bytes, group_alias=2 string
MemberRemovedEvent          group_id=1 bytes, removed_user_id=2 bytes
IdentityResetEvent          group_id=1 bytes, user_id=2 bytes
InviteReceivedEvent         invite_id=1 bytes, group_id=2 bytes, group_name=3 string, group_alias=4 string, \
inviter_id=5 bytes
InviteDeclinedEvent         group_id=1 bytes, declined_user_id=2 bytes
InviteCancelledEvent        group_id=1 bytes
GroupDeletedEvent           group_id=1 bytes
MessageRedactedEvent        group_id=1 bytes, sequence_num=2 uint64
Empty
"""
"""Every message with its fields and numbers: a client compiled from these must go on working."""

ENUMS = {
    "GroupVisibility": {"UNSPECIFIED": 0, "PRIVATE": 1, "PUBLIC": 2},
    "GroupRole": {"UNSPECIFIED": 0, "MEMBER": 1, "ADMIN": 2},
    "GroupUpdateType": {"UNSPECIFIED": 0, "COMMIT": 1, "GROUP_SETTINGS": 2, "ROLE_CHANGE": 3},
    "ErrorCode": {code.name: code.value for code in ErrorCode},
}

TYPES = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
}


def type_of(field: FieldDescriptor) -> str:
    named = field.message_type or field.enum_type
    return (named.name if named else TYPES[field.type]) + ("[]" if field.is_repeated else "")


def test_every_message_has_the_fields_numbers_and_types_of_the_contract() -> None:
    expected = {line.split()[0]: " ".join(line.split()[1:]) for line in CONTRACT.strip().splitlines()}
    actual = {
        name: ", ".join(f"{field.name}={field.number} {type_of(field)}" for field in message.fields)
        for name, message in conclave_pb2.DESCRIPTOR.message_types_by_name.items()
    }
    assert actual == expected


def test_every_enum_has_the_numbers_of_the_contract() -> None:
    actual = {}
    for name, enum in conclave_pb2.DESCRIPTOR.enum_types_by_name.items():
        prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper() + "_"
        assert all(value.name.startswith(prefix) for value in enum.values)
        actual[name] = {value.name.removeprefix(prefix): value.number for value in enum.values}
    assert actual == ENUMS


def test_the_package_is_that_of_the_contract_and_an_event_is_one_of_its_kinds() -> None:
    assert conclave_pb2.DESCRIPTOR.package == "conclave.v1"
    event = conclave_pb2.DESCRIPTOR.message_types_by_name["ServerEvent"]
    assert len(event.oneofs) == 1
    assert len(event.oneofs[0].fields) == len(event.fields)


@pytest.mark.parametrize("name", ["conclave_pb2.py", "conclave_pb2.pyi"])
def test_the_generated_code_is_current(tmp_path: Path, name: str) -> None:
    """``make proto`` would change nothing."""
    [recipe] = re.findall(r"-m (grpc_tools\.protoc .*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    command = recipe.replace("_out=.", f"_out={tmp_path}").split()
    subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=True)
    generated = Path("conclave/wire") / name
    assert (tmp_path / generated).read_text() == (ROOT / generated).read_text()
