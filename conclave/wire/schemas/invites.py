"""Invites that wait for an answer, and the welcomes that follow."""

from dataclasses import dataclass

from marshmallow import fields

from conclave.fields import Text
from conclave.wire.fields import Bytes, Identifier, required
from conclave.wire.schemas.base import RequestSchema, ResponseSchema


@dataclass(frozen=True)
class EscrowInvite:
    """Whom to invite, and what the invite carries."""

    invitee_id: bytes
    commit_message: bytes
    welcome_message: bytes
    group_info: bytes


class EscrowInviteRequest(RequestSchema):
    """An invite, with all that its acceptance needs."""

    makes = EscrowInvite

    invitee_id = required(Identifier)
    commit_message = required(Bytes)
    welcome_message = required(Bytes)
    group_info = required(Bytes)


class PendingInvite(ResponseSchema):
    """An invite that waits for an answer; ``created_at`` in Unix seconds."""

    invite_id = Identifier()
    group_id = Identifier()
    group_name = Text()
    group_alias = Text()
    inviter_username = Text()
    created_at = fields.Integer()
    invitee_id = Identifier()
    inviter_id = Identifier()


class ListPendingInvitesResponse(ResponseSchema):
    """The caller's invites."""

    invites = fields.List(fields.Nested(PendingInvite))


class ListGroupPendingInvitesResponse(ListPendingInvitesResponse):
    """A group's invites."""


@dataclass(frozen=True)
class CancelInvite:
    """Whose invite to withdraw."""

    invitee_id: bytes


class CancelInviteRequest(RequestSchema):
    """Whose invite to withdraw."""

    makes = CancelInvite

    invitee_id = required(Identifier)


class PendingWelcome(ResponseSchema):
    """What a new member needs to take part."""

    group_id = Identifier()
    group_alias = Text()
    welcome_message = Bytes()
    welcome_id = Identifier()


class ListPendingWelcomesResponse(ResponseSchema):
    """The caller's welcomes."""

    welcomes = fields.List(fields.Nested(PendingWelcome))
