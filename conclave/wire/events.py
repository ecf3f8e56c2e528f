"""The events of the protocol, as frozen values: see ``results``."""

from dataclasses import dataclass
from uuid import UUID

from conclave.wire.results import WireMessage


@dataclass(frozen=True)
class NewMessage(WireMessage):
    """A message was sent."""

    wire = "NewMessageEvent"

    group_id: UUID
    sequence_num: int
    sender_id: UUID


@dataclass(frozen=True)
class GroupUpdate(WireMessage):
    """Something of the group changed: ``update_type`` is commit, group_settings or role_change."""

    wire = "GroupUpdateEvent"

    group_id: UUID
    update_type: str


@dataclass(frozen=True)
class WelcomeWaits(WireMessage):
    """A welcome waits for the user, who is a member now."""

    wire = "WelcomeEvent"

    group_id: UUID
    group_alias: str


@dataclass(frozen=True)
class MemberRemoved(WireMessage):
    """A user is no longer a member."""

    wire = "MemberRemovedEvent"

    group_id: UUID
    removed_user_id: UUID


@dataclass(frozen=True)
class IdentityReset(WireMessage):
    """A member has joined the MLS group anew."""

    wire = "IdentityResetEvent"

    group_id: UUID
    user_id: UUID


@dataclass(frozen=True)
class InviteReceived(WireMessage):
    """The user is invited."""

    wire = "InviteReceivedEvent"

    invite_id: UUID
    group_id: UUID
    group_name: str
    group_alias: str
    inviter_id: UUID


@dataclass(frozen=True)
class InviteDeclined(WireMessage):
    """An invite was declined, cancelled or withdrawn, it expired, or the invitee's account is gone."""

    wire = "InviteDeclinedEvent"

    group_id: UUID
    declined_user_id: UUID


@dataclass(frozen=True)
class InviteCancelled(WireMessage):
    """The user is not invited any more."""

    wire = "InviteCancelledEvent"

    group_id: UUID


@dataclass(frozen=True)
class GroupDeleted(WireMessage):
    """The group is gone."""

    wire = "GroupDeletedEvent"

    group_id: UUID


@dataclass(frozen=True)
class MessageRedacted(WireMessage):
    """A self-destructing message came to its end for the user: a client must forget it."""

    wire = "MessageRedactedEvent"

    group_id: UUID
    sequence_num: int


Event = (
    NewMessage
    | GroupUpdate
    | WelcomeWaits
    | MemberRemoved
    | IdentityReset
    | InviteReceived
    | InviteDeclined
    | InviteCancelled
    | GroupDeleted
    | MessageRedacted
)

EVENTS: dict[str, type[Event]] = {
    "new_message": NewMessage,
    "group_update": GroupUpdate,
    "welcome": WelcomeWaits,
    "member_removed": MemberRemoved,
    "identity_reset": IdentityReset,
    "invite_received": InviteReceived,
    "invite_declined": InviteDeclined,
    "invite_cancelled": InviteCancelled,
    "group_deleted": GroupDeleted,
    "message_redacted": MessageRedacted,
}
"""The events by their names on a stream."""
