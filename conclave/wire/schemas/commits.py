"""MLS commits and the group info that goes with them."""

from dataclasses import dataclass
from typing import ClassVar

from conclave.strict_fields import Text
from conclave.wire.fields import HEX_RULE, Bytes
from conclave.wire.schemas.base import RequestSchema


@dataclass(frozen=True)
class LeaveGroup:
    """What a leaving member hands over. A part that is b"" was not given."""

    commit_message: bytes
    group_info: bytes


class LeaveGroupRequest(RequestSchema):
    """What a leaving member hands over, if anything."""

    result_class: ClassVar[type] = LeaveGroup

    commit_message = Bytes(load_default=b"")
    group_info = Bytes(load_default=b"")


@dataclass(frozen=True)
class UploadCommit(LeaveGroup):
    """The parts of a commit. An empty one was not given."""

    mls_group_id: str


class UploadCommitRequest(LeaveGroupRequest):
    """A commit, new group info, the group's MLS id: any of them."""

    result_class = UploadCommit

    mls_group_id = Text(load_default="", validate=HEX_RULE)


@dataclass(frozen=True)
class ExternalJoin:
    """The parts of an external commit. An empty one was not given."""

    commit_message: bytes
    mls_group_id: str
    group_info: bytes


class ExternalJoinRequest(RequestSchema):
    """The commit by which a user joins the MLS group from outside, if the server is to hand it on."""

    result_class = ExternalJoin

    commit_message = Bytes(load_default=b"")
    mls_group_id = Text(load_default="", validate=HEX_RULE)
    group_info = Bytes(load_default=b"")
