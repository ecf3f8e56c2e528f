"""Roles, removals and bans."""

from dataclasses import dataclass

from marshmallow import fields

from conclave.fields import Text
from conclave.wire.fields import Identifier, required
from conclave.wire.schemas.base import RequestSchema, ResponseSchema
from conclave.wire.schemas.commits import LeaveGroup, LeaveGroupRequest
from conclave.wire.schemas.groups import GroupMember


@dataclass(frozen=True)
class NamedUser:
    """The user whom a request is about."""

    user_id: bytes


class PromoteMemberRequest(RequestSchema):
    """The member who becomes an admin."""

    makes = NamedUser

    user_id = required(Identifier)


class DemoteMemberRequest(RequestSchema):
    """The admin who becomes a member."""

    makes = NamedUser

    user_id = required(Identifier)


class ListAdminsResponse(ResponseSchema):
    """The admins of a group."""

    admins = fields.List(fields.Nested(GroupMember))


@dataclass(frozen=True)
class RemoveMember(LeaveGroup):
    """The user who is removed, and the parts of the commit. An empty one was not given."""

    user_id: bytes


class RemoveMemberRequest(LeaveGroupRequest):
    """The member who is removed, with the commit of the removal, if any."""

    makes = RemoveMember

    user_id = required(Identifier)


class BanMemberRequest(RemoveMemberRequest):
    """The user who is banned. A member is removed, with the commit of the removal, if any."""


class UnbanMemberRequest(RequestSchema):
    """The user whose ban is lifted."""

    makes = NamedUser

    user_id = required(Identifier)


class BannedUser(ResponseSchema):
    """A banned user. ``banned_at``: Unix seconds. ``banned_by``: empty once that account is gone."""

    user_id = Identifier()
    username = Text()
    alias = Text()
    banned_at = fields.Integer()
    banned_by = Identifier()


class ListBannedUsersResponse(ResponseSchema):
    """The users who are banned from a group."""

    users = fields.List(fields.Nested(BannedUser))
