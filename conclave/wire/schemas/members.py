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
    """Whom a request is about."""

    user_id: bytes


class PromoteMemberRequest(RequestSchema):
    """Who becomes an admin."""

    makes = NamedUser

    user_id = required(Identifier)


class DemoteMemberRequest(RequestSchema):
    """Who is an admin no longer."""

    makes = NamedUser

    user_id = required(Identifier)


class ListAdminsResponse(ResponseSchema):
    """The admins of a group."""

    admins = fields.List(fields.Nested(GroupMember))


@dataclass(frozen=True)
class RemoveMember(LeaveGroup):
    """Who has to go, with the parts of the commit; an empty one was not given."""

    user_id: bytes


class RemoveMemberRequest(LeaveGroupRequest):
    """Who has to go, with the commit that says so, if any."""

    makes = RemoveMember

    user_id = required(Identifier)


class BanMemberRequest(RemoveMemberRequest):
    """Who has to go and may not come back; of a member with the commit that says so, if any."""


class UnbanMemberRequest(RequestSchema):
    """Who may come back."""

    makes = NamedUser

    user_id = required(Identifier)


class BannedUser(ResponseSchema):
    """A banned user; ``banned_at`` in Unix seconds, ``banned_by`` empty once that account is gone."""

    user_id = Identifier()
    username = Text()
    alias = Text()
    banned_at = fields.Integer()
    banned_by = Identifier()


class ListBannedUsersResponse(ResponseSchema):
    """Who is banned from a group."""

    users = fields.List(fields.Nested(BannedUser))
