"""Roles, removals and bans."""

from dataclasses import dataclass

from conclave.wire.fields import Identifier, required
from conclave.wire.schemas.base import RequestSchema
from conclave.wire.schemas.commits import LeaveGroup, LeaveGroupRequest


@dataclass(frozen=True)
class NamedUser:
    """The user whom a request is about."""

    user_id: bytes


class PromoteMemberRequest(RequestSchema):
    """The member who becomes an admin."""

    result_class = NamedUser

    user_id = required(Identifier)


class DemoteMemberRequest(RequestSchema):
    """The admin who becomes a member."""

    result_class = NamedUser

    user_id = required(Identifier)


@dataclass(frozen=True)
class RemoveMember(LeaveGroup):
    """The user who is removed, and the parts of the commit. An empty one was not given."""

    user_id: bytes


class RemoveMemberRequest(LeaveGroupRequest):
    """The member who is removed, with the commit of the removal, if any."""

    result_class = RemoveMember

    user_id = required(Identifier)


class BanMemberRequest(RemoveMemberRequest):
    """The user who is banned. A member is removed, with the commit of the removal, if any."""


class UnbanMemberRequest(RequestSchema):
    """The user whose ban is lifted."""

    result_class = NamedUser

    user_id = required(Identifier)
