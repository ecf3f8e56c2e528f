"""Events, as they go over a stream."""

from dataclasses import dataclass

from marshmallow import fields, validate

from conclave.fields import Text
from conclave.wire.fields import Identifier
from conclave.wire.schemas.base import QuerySchema, ResponseSchema


@dataclass(frozen=True)
class Listen:
    """How to listen. A ``format`` of "" is the format of the session."""

    format: str


class EventsQuery(QuerySchema):
    """The format in which to write the events. Without it they have the format of the session."""

    makes = Listen

    format = Text(load_default="", validate=validate.OneOf(["json", "protobuf"], error='must be "json" or "protobuf"'))


class _OfGroup:
    """The field that all events have: the group."""

    group_id = Identifier()


class GroupDeletedEvent(_OfGroup, ResponseSchema):
    """The group is gone."""


class NewMessageEvent(_OfGroup, ResponseSchema):
    """A message was sent."""

    sequence_num = fields.Integer()
    sender_id = Identifier()


class GroupUpdateEvent(_OfGroup, ResponseSchema):
    """Something of the group changed: ``update_type`` is commit, group_settings or role_change."""

    update_type = Text()


class MemberRemovedEvent(_OfGroup, ResponseSchema):
    """Somebody is no longer a member."""

    removed_user_id = Identifier()


class WelcomeEvent(_OfGroup, ResponseSchema):
    """A welcome waits for the user, who is a member now."""

    group_alias = Text()


class IdentityResetEvent(_OfGroup, ResponseSchema):
    """A member has joined the MLS group anew."""

    user_id = Identifier()


class InviteReceivedEvent(_OfGroup, ResponseSchema):
    """The user is invited."""

    invite_id = Identifier()
    group_name = Text()
    group_alias = Text()
    inviter_id = Identifier()


class InviteDeclinedEvent(_OfGroup, ResponseSchema):
    """An invite was declined, cancelled or withdrawn, it expired, or the invitee's account is gone."""

    declined_user_id = Identifier()


class InviteCancelledEvent(_OfGroup, ResponseSchema):
    """The user is not invited any more."""


class MessageRedactedEvent(_OfGroup, ResponseSchema):
    """A self-destructing message came to its end for the user: a client must forget it."""

    sequence_num = fields.Integer()


EVENTS: dict[str, type[ResponseSchema]] = {
    "new_message": NewMessageEvent,
    "group_update": GroupUpdateEvent,
    "welcome": WelcomeEvent,
    "member_removed": MemberRemovedEvent,
    "identity_reset": IdentityResetEvent,
    "invite_received": InviteReceivedEvent,
    "invite_declined": InviteDeclinedEvent,
    "invite_cancelled": InviteCancelledEvent,
    "group_deleted": GroupDeletedEvent,
    "message_redacted": MessageRedactedEvent,
}
"""The schema of each event by the event's name on a stream."""
