"""MLS commits and the group info that goes with them."""

from conclave.fields import Text
from conclave.wire.fields import HEX_RULE, Bytes
from conclave.wire.schemas.base import RequestSchema, ResponseSchema


class LeaveGroupRequest(RequestSchema):
    """What a leaving member hands over, if anything."""

    commit_message = Bytes(load_default=b"")
    group_info = Bytes(load_default=b"")


class UploadCommitRequest(LeaveGroupRequest):
    """A commit, new group info, the group's MLS id: any of them."""

    mls_group_id = Text(load_default="", validate=HEX_RULE)


class ExternalJoinRequest(RequestSchema):
    """The commit by which somebody adds themselves to the MLS group, if the server is to hand it on."""

    commit_message = Bytes(load_default=b"")
    mls_group_id = Text(load_default="", validate=HEX_RULE)


class GetGroupInfoResponse(ResponseSchema):
    """The stored group info."""

    group_info = Bytes()
