"""Roles, removals and bans."""

from dataclasses import dataclass

from conclave.wire.fields import Identifier, required
from conclave.wire.schemas.base import RequestSchema
from conclave.wire.schemas.commits import LeaveGroup, LeaveGroupRequest


@dataclass(frozen=True)
class NamedUser:
    """The user to promote, demote or unban."""

    user_id: bytes


class PromoteMemberRequest(RequestSchema):
    """The member to make an admin."""

    result_class = NamedUser

    user_id = required(Identifier)


class DemoteMemberRequest(RequestSchema):
    """The admin to make a member."""

    result_class = NamedUser

    user_id = required(Identifier)


@dataclass(frozen=True)
class RemoveMember(LeaveGroup):
    """The user to remove, and the parts of the commit, empty if absent."""

    user_id: bytes


class RemoveMemberRequest(LeaveGroupRequest):
    """The member to remove, with the commit of the removal, if any."""

    result_class = RemoveMember

    user_id = required(Identifier)


class BanMemberRequest(RemoveMemberRequest):
    """The user to ban. A member is removed, with the commit of the removal, if any."""


class UnbanMemberRequest(RequestSchema):
    """The user whose ban is lifted."""

    result_class = NamedUser

    user_id = required(Identifier)
