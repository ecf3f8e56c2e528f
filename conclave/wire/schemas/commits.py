"""MLS commits with their group info."""

from dataclasses import dataclass
from typing import ClassVar

from conclave.strict_fields import Text
from conclave.wire.fields import HEX_RULE, Bytes
from conclave.wire.schemas.base import RequestSchema


@dataclass(frozen=True)
class LeaveGroup:
    """The commit of a leaving member, and the group info; b"" if absent."""

    commit_message: bytes
    group_info: bytes


class LeaveGroupRequest(RequestSchema):
    """The commit of a leaving member and the group info, both optional."""

    result_class: ClassVar[type] = LeaveGroup

    commit_message = Bytes(load_default=b"")
    group_info = Bytes(load_default=b"")


@dataclass(frozen=True)
class UploadCommit(LeaveGroup):
    """The parts of a commit, empty if absent."""

    mls_group_id: str


class UploadCommitRequest(LeaveGroupRequest):
    """A commit, new group info and the group's MLS id, all optional."""

    result_class = UploadCommit

    mls_group_id = Text(load_default="", validate=HEX_RULE)


@dataclass(frozen=True)
class ExternalJoin:
    """The parts of an external commit, empty if absent."""

    commit_message: bytes
    mls_group_id: str
    group_info: bytes


class ExternalJoinRequest(RequestSchema):
    """The external commit by which a user joins the MLS group, if the server is to distribute it."""

    result_class = ExternalJoin

    commit_message = Bytes(load_default=b"")
    mls_group_id = Text(load_default="", validate=HEX_RULE)
    group_info = Bytes(load_default=b"")
